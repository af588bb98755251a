/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The express path put to work on the maps: is there an entry by which this
 * frame goes from the NIC straight to its pod, and does its flow take it? To the order guard such
 * a path is a lane of the NIC's stage, entered and left as any other, but left at once where the
 * stack has to see a frame.
 */
#ifndef OVERLANE_EXPRESS_ENTRIES_H
#define OVERLANE_EXPRESS_ENTRIES_H

#include "steer.h"
#include "express.h"

OL_MAP(HASH, ol_express_entries, 4 * OL_PORTS, struct ol_express_key, struct ol_express_entry);

/* The hosts' ends of the pods' veths. */
OL_MAP(DEVMAP, ol_express_ports, OL_PORTS, __u32, __u32);

OL_MAP(LRU_HASH, ol_express_senders, OL_SENDERS, struct ol_sender_key, struct ol_sender);

/*
 * Senders of which tunnels that learn were told behind which host they are: what comes from another
 * one they drop (vxlan_snoop). The value is the host's address, IPv4 as on the wire; 0: none's.
 */
OL_MAP(HASH, ol_express_fixed, OL_SENDERS, struct ol_sender_key, __u32);

/* Frames for which there was an entry, by why they took the full path: enum ol_express_unfit. */
OL_MAP(PERCPU_ARRAY, ol_express_unfits, OL_NR_UNFIT, __u32, __u64);

/*
 * An entry that is withdrawn is still taken for so long by flows that have not been seen to
 * leave it in order.
 */
#define OL_EXPRESS_LEAVE_NS 5000000

/* The last frame that took an entry in this core's hook, as the second of its flow in a row. */
struct ol_express_last {
	struct ol_head head;
	__u32 seq; /* of the poll; within one, no flow changes its lane */
	__u32 entries;
	__u32 nic;
	__u32 port;
	__u32 max_len;
	__u32 slot;
	struct ol_sender_key sender; /* the last that was asked about ... */
	__u32 from;		     /* ... behind this host ... */
	__u32 asked;		     /* ... in the poll with this number */
};

OL_MAP(PERCPU_ARRAY, ol_express_lasts, 1, __u32, struct ol_express_last);

/*
 * Sends a frame on its way that is the next of such a run, without another look at all that
 * was found out about the run's first. Returns XDP_PASS for any other.
 */
__noinline int ol_express_next(struct xdp_md *ctx)
{
	struct ol_express_last *l = ol_at(&ol_express_lasts, 0);
	struct ol_cpu *cpu = ol_get_cpu(bpf_get_smp_processor_id());
	struct ol_policy *policy = ol_get_policy();
	struct ol_cursor c;

	if (!l || !cpu || !policy || l->seq != cpu->seq || l->entries != policy->entries ||
	    l->nic != ctx->ingress_ifindex)
		return XDP_PASS;
	ol_cursor_at(ctx, &c);
	c.total = bpf_xdp_get_buff_len(ctx);
	if (!ol_run_goes_on(&c, &l->head) || c.total - OL_INNER_PLAIN > l->max_len ||
	    bpf_redirect_map(&ol_express_ports, l->port, XDP_PASS) != XDP_REDIRECT ||
	    bpf_xdp_adjust_head(ctx, OL_INNER_PLAIN))
		return XDP_PASS;
	ol_count(OL_CNT_XDP_OVERLAY, 1);
	ol_count(OL_CNT_EXPRESS, 1);
	return XDP_REDIRECT;
}

/* What is known of a frame on its way through the hook. */
struct ol_express_turn {
	struct ol_sender_key sender;
	__u32 port; /* where it may go, plus one; 0: there is no entry */
	__u32 refresh_us;
	__u32 max_len;
	__u32 from; /* outer source */
	__u32 slot;
	__u8 may;   /* wish for the entry */
	__u8 never; /* this frame is not to take it, whatever that does to its flow's order */
	__u8 unfit;
	__u8 again;
	__u8 fixed; /* the tunnel was told where some senders are */
	__u32 lane;
};

/* Not on the stack, which has no room for it. */
OL_MAP(PERCPU_ARRAY, ol_express_turns, 1, __u32, struct ol_express_turn);

/* A frame for which there is an entry takes the full path. */
static __always_inline void ol_express_unfit(struct ol_express_turn *t, __u32 why)
{
	t->unfit = why;
	ol_add(&ol_express_unfits, why, 1);
}

/*
 * Would the tunnel take a frame of that sender from that host? Not in ol_express_judge, which has
 * no room left on the stack.
 */
__noinline int ol_express_locate(struct ol_express_turn *t, __u32 seq)
{
	struct ol_express_last *l = ol_at(&ol_express_lasts, 0);
	__u32 *host;

	if (!t || (l && l->asked == seq && l->from == t->from &&
		   !__builtin_memcmp(&l->sender, &t->sender, sizeof(l->sender))))
		return 0;
	host = bpf_map_lookup_elem(&ol_express_fixed, &t->sender);
	if (!host || *host == t->from)
		return 0;
	t->may = 0;
	t->never = 1;
	ol_express_unfit(t, OL_UNFIT_SENDER);
	return 0;
}

/* Is there an entry for this frame, and may it take it? */
__noinline int ol_express_judge(struct xdp_md *ctx, const struct ol_frame *f,
				struct ol_express_turn *t)
{
	struct ol_policy *policy = ol_get_policy();
	struct ol_express_key key = {};
	struct ol_express_entry *entry;
	struct ol_cursor c;
	const __u8 *eth;
	__u32 inner;

	if (!f || !t || !policy || f->tunnel >= OL_MAX_TUNNELS)
		return 0;
	t->never = 1;
	/*
	 * Of TCP, the NIC's GRO makes few packets of many frames, and its checksum is known: what
	 * is behind costs less than to look at each frame.
	 */
	if (f->flow.proto != OL_IPPROTO_UDP)
		return 0;
	inner = f->inner;
	ol_cursor_at(ctx, &c);
	if (inner > 512)
		return 0;
	eth = c.data + inner;
	if (!OL_FITS(&c, eth, OL_ETH_HLEN))
		return 0;
	key.nic = ctx->ingress_ifindex;
	key.vni = policy->tunnel[f->tunnel].vni;
	key.port = policy->tunnel[f->tunnel].port;
	__builtin_memcpy(key.mac, eth, sizeof(key.mac));
	entry = bpf_map_lookup_elem(&ol_express_entries, &key);
	if (!entry)
		return 0;
	t->port = entry->port + 1;
	t->refresh_us = entry->refresh_us;
	t->max_len = entry->max_len;
	t->sender.vni = key.vni;
	t->sender.port = key.port;
	__builtin_memcpy(t->sender.mac, eth + 6, sizeof(t->sender.mac));
	c.total = bpf_xdp_get_buff_len(ctx);
	t->unfit = c.total - inner > entry->max_len ? OL_UNFIT_LONG
						    : ol_express_plain(&c, inner, &entry->tunnel);
	if (t->unfit) {
		ol_express_unfit(t, t->unfit);
		return 0;
	}
	t->from = ol_word(c.data + OL_ETH_HLEN + 12);
	t->fixed = entry->fixed;
	if (entry->withdrawn) {
		t->never = bpf_ktime_get_ns() - entry->withdrawn > OL_EXPRESS_LEAVE_NS;
		return 0;
	}
	t->may = !(policy->flags & OL_F_EXPRESS_HELD);
	t->never = 0;
	return 0;
}

/* Does the stack know the sender, or does it have to see a frame? */
static __always_inline int ol_sender_known(struct ol_express_turn *t, struct ol_slot *s, __u32 seq)
{
	struct ol_express_last *l = ol_at(&ol_express_lasts, 0);
	struct ol_sender *known;

	if (!l)
		return 0;
	if (l->asked == seq && l->from == t->from &&
	    !__builtin_memcmp(&l->sender, &t->sender, sizeof(l->sender)))
		return 1;
	known = bpf_map_lookup_elem(&ol_express_senders, &t->sender);
	if (known && known->from != t->from)
		return 0;
	l->asked = seq;
	l->from = t->from;
	l->sender = t->sender;
	s->due = !known || (__u32)(bpf_ktime_get_ns() / 1000) - known->seen > t->refresh_us;
	return 1;
}

static __always_inline void ol_express_keep(struct xdp_md *ctx, const struct ol_frame *f,
					    const struct ol_express_turn *t, __u32 entries,
					    __u32 seq)
{
	struct ol_express_last *l = ol_at(&ol_express_lasts, 0);
	struct ol_cursor c;

	ol_cursor_at(ctx, &c);
	if (!l || !ol_run_begin(&c, f->inner, &l->head))
		return;
	l->seq = seq;
	l->entries = entries;
	l->nic = ctx->ingress_ifindex;
	l->port = t->port - 1;
	l->max_len = t->max_len;
	l->slot = t->slot;
}

/* A flow of the slot leaves its entry: no frame is to go on as the one before did. */
static __always_inline void ol_express_forget(__u32 slot)
{
	struct ol_express_last *l = ol_at(&ol_express_lasts, 0);

	if (l && l->slot == slot)
		l->nic = 0;
}

/* Takes the express lane from a slot, if no other core takes a turn at that moment. */
static __always_inline int ol_express_left(struct ol_slot *s, struct ol_turn *t)
{
	__u64 seen = OL_READ(t->turn), next = ol_next_turn(seen, OL_LANE_LOCAL);

	if (ol_turn_lane(seen) != OL_LANE_EXPRESS)
		return 1;
	if (__sync_val_compare_and_swap(&t->turn, seen, next) != seen)
		return 0;
	if (s->turn == (__u32)(seen / OL_TURN))
		s->turn = next / OL_TURN;
	return 1;
}

/* A flow leaves its entry at once. No program has seen whether it overtakes itself by that. */
static __always_inline void ol_express_leave(struct ol_slot *s, __u32 slot, __u64 now)
{
	struct ol_turn *t = ol_get_turn(OL_STAGE_NIC, slot);

	if (s->lane == OL_LANE_EXPRESS && t) {
		/* Meanwhile other cores may take turns. */
		for (int i = 0; i < 8 && !ol_express_left(s, t); i++)
			;
		s->lane = OL_LANE_LOCAL;
		ol_count(OL_CNT_EXPRESS_LEFT, 1);
	}
	s->since = now;
}

/*
 * Sends a frame on its way if that is its flow's lane: XDP_REDIRECT. Else it goes the full
 * path, on which what has to know its sender gets to know it.
 */
__noinline int ol_express_take(struct xdp_md *ctx, const struct ol_frame *f,
			       struct ol_express_turn *t)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), stage = OL_STAGE_NIC;
	struct ol_policy *policy = ol_get_policy();
	struct ol_sender now = {};
	struct ol_recent *last;
	struct ol_cpu *cpu;
	struct ol_slot *s;

	if (!f || !t)
		return XDP_PASS;
	s = ol_get_slot(this_cpu, OL_STAGE_NIC, t->slot);
	cpu = ol_get_cpu(this_cpu);
	last = bpf_map_lookup_elem(&ol_recents, &stage);
	if (!s || !cpu || !last || !policy)
		return XDP_PASS;
	/*
	 * A slot that entered has no port yet. It has one: flows to other pods, or without an
	 * entry.
	 */
	if (t->lane == OL_LANE_EXPRESS && s->port == OL_NO_PORT && t->port)
		s->port = t->port - 1;
	if (t->lane == OL_LANE_EXPRESS && t->port != s->port + 1U)
		return XDP_PASS;
	if (t->lane == OL_LANE_EXPRESS && !t->never && s->epoch == (__u8)policy->express_epoch) {
		if (t->again)
			ol_express_keep(ctx, f, t, policy->entries, cpu->seq);
		if ((!t->refresh_us || ol_sender_known(t, s, cpu->seq)) &&
		    bpf_redirect_map(&ol_express_ports, s->port, XDP_PASS) == XDP_REDIRECT &&
		    !bpf_xdp_adjust_head(ctx, f->inner)) {
			ol_count(OL_CNT_EXPRESS, 1);
			return XDP_REDIRECT;
		}
	}
	/* The run is over, if it was this flow's. */
	ol_express_forget(t->slot);
	if (s->lane == OL_LANE_EXPRESS || t->unfit)
		ol_express_leave(s, t->slot, cpu->now);
	if (last->slot == t->slot && last->lane == OL_LANE_EXPRESS)
		last->lane = OL_LANE_LOCAL;
	if (t->port && t->refresh_us && !t->again && !t->unfit) {
		now.seen = bpf_ktime_get_ns() / 1000;
		now.from = t->from;
		bpf_map_update_elem(&ol_express_senders, &t->sender, &now, BPF_ANY);
		s->due = 0;
	}
	return XDP_PASS;
}

/*
 * The verdict on a frame in the NIC's stage: XDP_REDIRECT if it has been sent straight to its pod,
 * else XDP_PASS, and *lane is where its flow goes on: h->slot and h->again as by ol_steer_flow.
 * leave: its flow is to leave for another lane as soon as that overtakes nothing. An untracked
 * fragment of a datagram has none.
 */
static __always_inline int ol_express_steer(struct xdp_md *ctx, const struct ol_policy *policy,
					    struct ol_hop *h, const struct ol_frame *f, int leave,
					    __u32 *lane, enum ol_reason *r)
{
	__u32 zero = 0;
	struct ol_express_turn *t = bpf_map_lookup_elem(&ol_express_turns, &zero);

	*lane = OL_LANE_LOCAL;
	if (!t)
		return XDP_PASS;
	t->port = 0;
	if (policy->flags & OL_F_EXPRESS) {
		__builtin_memset(t, 0, sizeof(*t));
		ol_express_judge(ctx, f, t);
		if (t->fixed)
			ol_express_locate(t, h->cpu->seq);
		h->express = t->may && !leave ? t->port : 0;
	}
	*lane = ol_steer_flow(h, &f->flow, r);
	if (*r || *lane == OL_LANE_REFUSED)
		return XDP_PASS;
	if (*lane == OL_LANE_EXPRESS || t->port) {
		t->lane = *lane;
		t->slot = h->slot;
		t->again = h->again;
		if (ol_express_take(ctx, f, t) == XDP_REDIRECT)
			return XDP_REDIRECT;
	}
	if (*lane == OL_LANE_EXPRESS)
		*lane = OL_LANE_LOCAL;
	return XDP_PASS;
}

#endif
