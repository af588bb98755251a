/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What tcx programs share: reading a packet, and choosing the core of the next stage by the
 * packet's hash, which RPS of the next device follows. Hash 0 means: stay (get_rps_cpu finds
 * nothing to go by), and is what every packet gets that might reach a device whose RPS mask
 * is ours but that is not to be steered.
 */
#ifndef OVERLANE_TCX_H
#define OVERLANE_TCX_H

#include "steer.h"

/* The longest headers that are read, with 252 bytes of Geneve options and the extension headers of IPv6. */
#define OL_HEADERS (404 + OL_EXTENSIONS * OL_EXTENSION_WORDS * 8)

OL_MAP(PERCPU_ARRAY, ol_header_copies, 1, __u32, __u8[OL_HEADERS]);

/*
 * The hash by which RPS takes a packet to a lane, from what is the same for all of its flow. It keeps what is left of
 * that modulo OL_HASH_STEP, and differs from flow to flow in its high bits, by which queues and buckets are chosen.
 */
static __always_inline __u32 ol_hash_from(const struct ol_lanes *lanes, __u32 first, __u32 flow)
{
	__u32 steps = lanes->steps;

	return first + flow % OL_HASH_STEP + (steps ? flow % steps : 0) * OL_HASH_STEP;
}

static __always_inline __u32 ol_lane_hash(const struct ol_lanes *lanes, __u32 lane, __u32 flow)
{
	return ol_hash_from(lanes, lanes->hash[ol_lane_index(lane)], flow);
}

/* Keeps a packet that is not steered where it is, if RPS would else move it. */
static __always_inline int ol_stay(struct __sk_buff *skb, const struct ol_policy *policy)
{
	if (policy->flags & OL_F_NEUTRAL)
		bpf_set_hash(skb, 0);
	return TCX_NEXT;
}

/*
 * Finds a packet's headers: in its first buffer, or, where that ends among them, in a copy. The packet stays as
 * it is: to pull headers into that buffer takes payload along, which the stack must copy then, and takes chains
 * of packets (rx-gro-list) apart.
 */
static __always_inline int ol_find_headers(struct __sk_buff *skb, struct ol_cursor *c, int copied)
{
	__u32 len = skb->len < OL_HEADERS ? skb->len : OL_HEADERS;
	__u8 *copy;

	if (!copied) {
		c->data = (void *)(long)skb->data;
		c->end = (void *)(long)skb->data_end;
		return 1;
	}
	copy = ol_at(&ol_header_copies, 0);
	if (!copy || !len || bpf_skb_load_bytes(skb, 0, copy, len))
		return 0;
	c->data = copy;
	c->end = copy + len;
	return 1;
}

/* What is this packet? */
__noinline int ol_read_skb(struct __sk_buff *skb, struct ol_frame *f, int copied)
{
	struct ol_policy *policy = ol_get_policy();
	struct ol_cursor c;

	if (!f || !policy)
		return OL_NOT_OVERLAY;
	if (!ol_find_headers(skb, &c, copied))
		return OL_SHORT;
	/* A super-packet's lengths need not add up: only its headers are read. */
	c.total = skb->gso_segs > 1 ? 0 : skb->len;
	return ol_classify(&c, policy, f);
}

/*
 * Is it a packet for one of our tunnels? If not, what becomes of it: its hash is its own,
 * as long as it cannot end in a tunnel.
 */
static __always_inline int ol_of_tunnel(struct __sk_buff *skb, const struct ol_policy *policy,
					struct ol_frame *f, int *verdict)
{
	enum ol_reason r = ol_read_skb(skb, f, 0);

	/* What is steered must not go by how much of a packet is in its first buffer. */
	if (r == OL_SHORT)
		r = ol_read_skb(skb, f, 1);
	if (!r && f->tunnel < OL_MAX_TUNNELS)
		return 1;
	if (r != OL_NOT_OVERLAY)
		ol_reason(r);
	*verdict = f->may_concern ? ol_stay(skb, policy) : TCX_NEXT;
	return 0;
}

/* Sends a packet to a lane of the tunnel stage, or lets it stay. */
static __always_inline int ol_to_tunnel(struct __sk_buff *skb, struct ol_policy *policy, __u32 lane,
					__u32 slot)
{
	struct ol_lanes *lanes = &policy->stage[OL_STAGE_TUNNEL];
	__u32 segs = skb->gso_segs ? skb->gso_segs : 1;

	if (lane >= lanes->nr)
		return ol_stay(skb, policy);
	lane = ol_lane_index(lane);
	bpf_set_hash(skb, ol_lane_hash(lanes, lane, slot));
	ol_count(OL_CNT_STEERED, segs);
	ol_count_lane(OL_STAGE_TUNNEL, lane, segs);
	return TCX_NEXT;
}

#endif
