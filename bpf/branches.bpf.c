// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * tcx programs of micro-flows: on the underlay they cut flows, or note by which branch a
 * packet came; in front of a pod they send it by the resequencer, and behind that to the pod.
 */
#include "kernel.h"
#include "tcx.h"
#include "microflow.h"
#include "peer.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Sequence numbers of a TCP packet, as GRO has made it. Returns 0 if it has none to go by. */
static __always_inline int ol_tcp_range(struct __sk_buff *skb, const struct ol_flow *f, __u32 *seq,
					__u32 *end)
{
	__u32 len = f->len, room = skb->len - f->l4;
	__u8 head[20];

	if (bpf_skb_load_bytes(skb, f->l4, head, sizeof(head)))
		return 0;
	/* Padding is no data; of a super-packet the length may not fit into the header. */
	if (skb->gso_size || len > room)
		len = room;
	return ol_tcp_seqs(head, len, seq, end);
}

/*
 * Notes the branch by which a packet comes, of those of its flow, if it does: a flow may
 * also come by another core than the one that splits it, when a NIC's interrupt has moved.
 */
static __always_inline void ol_note_branch(struct __sk_buff *skb, __u32 branch)
{
	if (!(skb->tc_index & OL_TAG))
		skb->tc_index = OL_TAG_HASH | (branch < OL_ALL_BRANCHES ? branch + 1 : 0);
}

/*
 * On the underlay, where XDP is not to be had: packets of elephants go to several cores from
 * the tunnel on. What is not split stays.
 */
SEC("tcx/ingress")
int ol_underlay_split(struct __sk_buff *skb)
{
	__u32 branch = OL_NO_BRANCH, slot, tunnel, segs = skb->gso_segs ? skb->gso_segs : 1;
	struct ol_policy *policy = ol_get_policy();
	enum ol_reason untracked = 0;
	struct ol_frame f = {};
	int verdict;

	if (!policy)
		return TCX_NEXT;
	if (!ol_of_tunnel(skb, policy, &f, &verdict))
		return verdict;
	tunnel = f.tunnel;
	if (tunnel >= OL_MAX_TUNNELS)
		return TCX_NEXT;
	ol_count(OL_CNT_OVERLAY, segs);
	slot = ol_flow_slot(&f.flow, &untracked);
	if (ol_splits(policy->split_protos, f.flow.proto)) {
		struct ol_part part = {
			.slot = slot,
			.tunnel = policy->tunnel[tunnel].no_gro ? OL_NO_CELL : tunnel,
			.len = skb->len,
			.segs = segs,
		};

		if (f.flow.proto == OL_IPPROTO_TCP)
			ol_tcp_range(skb, &f.flow, &part.seq, &part.end);
		branch = ol_split(&f.flow, &part);
		if (branch == OL_NO_ROOM)
			return TCX_DROP;
		if (f.flow.proto == OL_IPPROTO_UDP && part.seq != part.end)
			skb->tc_index = OL_TAG | (part.seq & (OL_TAG_NUMBERS - 1));
	}
	ol_note_branch(skb, branch);
	return ol_to_tunnel(skb, policy, ol_branch_lane(policy, bpf_get_smp_processor_id(), branch),
			    slot);
}

/*
 * On the underlay, behind XDP: a frame's number, which XDP has put in front of it, is told
 * to the hook in front of its pod. Where a branch has a second core, what its lane's
 * thread brings goes on there.
 */
SEC("tcx/ingress")
int ol_underlay_number(struct __sk_buff *skb)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), branch, lane = OL_LANE_LOCAL, slot;
	__u32 *word = (void *)(long)skb->data_meta;
	struct ol_policy *policy = ol_get_policy();
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	enum ol_reason untracked = 0;
	struct ol_frame f = {};
	int verdict;

	if ((void *)(word + 1) <= (void *)(long)skb->data &&
	    ol_numbered(ol_merge_magic, *word) == *word)
		skb->tc_index = OL_TAG | (*word & (OL_TAG_NUMBERS - 1));
	if (!policy || !cpu)
		return TCX_NEXT;
	if ((__u32)bpf_get_current_pid_tgid() == cpu->lane_pid[OL_CLASS_BULK])
		lane = ol_lane_of(OL_STAGE_NIC, this_cpu);
	branch = ol_lane_branch(policy, lane);
	if (branch < OL_BRANCHES && !policy->split_second) {
		ol_note_branch(skb, branch);
		return TCX_NEXT;
	}
	if (!ol_of_tunnel(skb, policy, &f, &verdict))
		return verdict;
	slot = ol_flow_slot(&f.flow, &untracked);
	if (branch >= OL_BRANCHES && ol_splits_flow(&f.flow, slot))
		branch = OL_BRANCH_HERE;
	ol_note_branch(skb, branch);
	/*
	 * What is whole stays here as soon as the tunnel may have a mask, which is before flows are
	 * split: else the first that stay would overtake what the mask has moved.
	 */
	return ol_to_tunnel(skb, policy, lane, slot);
}

/* What is this packet, which has left its tunnel? */
__noinline int ol_read_inner(struct __sk_buff *skb, struct ol_frame *f, int copied)
{
	struct ol_cursor c = {};

	if (!f || !ol_find_headers(skb, &c, copied))
		return OL_SHORT;
	return ol_parse_inner(&c, 0, 0, &f->flow);
}

/* The flow's place among those that are put in order again, or OL_MERGES. */
__noinline __u32 ol_find_merging(struct __sk_buff *skb, struct ol_frame *f)
{
	enum ol_reason r;
	struct ol_merging *g;
	__u32 *place, at;
	__u64 key;

	if (!f)
		return OL_MERGES;
	r = ol_read_inner(skb, f, 0);
	if (r == OL_SHORT)
		r = ol_read_inner(skb, f, 1);
	if (r || f->flow.fragment != OL_FRAG_WHOLE)
		return OL_MERGES;
	key = ol_inner_hash(&f->flow, ol_key0, ol_key1);
	place = bpf_map_lookup_elem(&ol_merging_of, &key);
	if (!place)
		return OL_MERGES;
	at = *place;
	g = bpf_map_lookup_elem(&ol_mergings, &at);
	if (!g || g->key != key)
		return OL_MERGES;
	if (g->ifindex == skb->ifindex) {
		OL_WRITE(g->passed, bpf_ktime_get_coarse_ns());
		return at;
	}
	/* The same addresses and ports in another tunnel lead to another device. */
	if (g->ifindex)
		OL_WRITE(g->ambiguous, 1);
	else
		OL_WRITE(g->ifindex, skb->ifindex);
	return OL_MERGES;
}

/* The branch that a core is, of flows that are split. */
static __always_inline __u32 ol_branch_of(struct ol_policy *policy, __u32 core)
{
	__u32 branch = ol_lane_branch(
		policy,
		ol_lane_of(policy->split_second ? OL_STAGE_TUNNEL : policy->split_stage, core));

	return branch < OL_BRANCHES ? branch : OL_BRANCH_HERE;
}

/*
 * In front of a pod: the packets of split flows go on by the resequencer, marked. Whatever
 * else comes this way is not touched. Which core takes a packet out of there is not known;
 * its hash tells on which core it goes on.
 */
SEC("tcx/egress")
int ol_pod_merge(struct __sk_buff *skb)
{
	struct ol_policy *policy = ol_get_policy();
	__u32 at, generation, lane, segs, branch, number = skb->tc_index, seq, end;
	struct ol_frame f = {};
	struct ol_lanes *lanes;
	struct ol_merging *g;
	int ordered;

	if (number & (OL_TAG | OL_TAG_HASH)) {
		skb->tc_index = 0;
		bpf_set_hash_invalid(skb);
	}
	/* Without a device to send it through, it goes as it comes. */
	if (!policy || !policy->merge_ifindex || !ol_merges())
		return TCX_NEXT;
	at = ol_find_merging(skb, &f);
	g = at < OL_MERGES ? bpf_map_lookup_elem(&ol_mergings, &at) : NULL;
	lanes = &policy->stage[OL_STAGE_POD];
	if (!g || !lanes->nr)
		return TCX_NEXT;
	generation = OL_READ(g->generation);
	if (!(generation & 1))
		return TCX_NEXT;
	lane = ol_lane_index(g->behind % lanes->nr);
	segs = skb->gso_segs ? skb->gso_segs : 1;
	bpf_set_hash(skb, ol_lane_hash(lanes, lane, g->slot));
	ol_count(OL_CNT_POD, segs);
	ol_count(OL_CNT_POD_STEERED, segs);
	ol_count_lane(OL_STAGE_POD, lane, segs);
	skb->tc_index = OL_TAG_MERGED | at;
	skb->cb[0] = 0;
	__sync_fetch_and_add(&g->entered, 1);
	if (f.flow.proto == OL_IPPROTO_UDP) {
		branch = ol_branch_of(policy, bpf_get_smp_processor_id());
		ordered = number & OL_TAG && segs == 1;
		seq = ol_number_of(number, OL_READ(g->sent[branch % OL_ALL_BRANCHES]));
		end = seq + 1;
	} else {
		/* Of none: OL_ALL_BRANCHES. */
		branch = number & OL_TAG_HASH ? number & OL_TAG_BRANCH : 0;
		branch = branch ? branch - 1 : OL_ALL_BRANCHES;
		ordered = ol_tcp_range(skb, &f.flow, &seq, &end);
	}
	if (ordered) {
		skb->cb[0] = ol_merge_magic;
		skb->cb[1] = at | branch << 8 | segs << 16; /* struct ol_merge_mark */
		skb->cb[2] = seq;
		skb->cb[3] = end;
		skb->cb[4] = generation;
	}
	return bpf_redirect(policy->merge_ifindex, 0);
}

/* Behind the resequencer: on to the pod. Nothing else has any business there. */
SEC("tcx/ingress")
int ol_merged_in(struct __sk_buff *skb)
{
	__u32 at = skb->tc_index & ~OL_TAG_MERGED;
	struct ol_merging *g = bpf_map_lookup_elem(&ol_mergings, &at);

	if (!(skb->tc_index & OL_TAG_MERGED) || !g || !g->ifindex) {
		ol_count(OL_CNT_MERGED_LOST, skb->gso_segs ? skb->gso_segs : 1);
		return TCX_DROP;
	}
	OL_WRITE(g->left, g->left + 1);
	return ol_to_peer(skb, g->ifindex);
}
