/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* MFLOW's policy put to work on the maps: is this flow split, and which core takes this frame? */
#ifndef OVERLANE_MICROFLOW_H
#define OVERLANE_MICROFLOW_H

#include "steer.h"
#include "split.h"
#include "cuts.h"

/* Index: cpu * OL_ELEPHANTS + place. */
OL_MAP(ARRAY, ol_elephants, OL_ELEPHANTS, __u32, struct ol_elephant);

/*
 * A flow has four places, of which it takes one. With two, of nine flows three were of one
 * set once in two hundred times, and one of these stayed whole.
 */
#define OL_ELEPHANT_WAYS 4
#define OL_ELEPHANT_SETS (OL_ELEPHANTS / OL_ELEPHANT_WAYS)

/* What a frame that belongs to no split flow takes: the lane of its slot. */
#define OL_NO_BRANCH 0xfe

/* The merge would have no room for it: it is to be dropped. */
#define OL_NO_ROOM OL_ALL_BRANCHES

static __always_inline struct ol_elephant *ol_get_elephant(__u32 cpu, __u32 place)
{
	return place < OL_ELEPHANTS ? ol_at(&ol_elephants, cpu * OL_ELEPHANTS + place) : NULL;
}

/* The place that a flow has on a core, or OL_NO_PLACE. */
static __always_inline __u32 ol_elephant_of(__u32 cpu, const struct ol_flow *flow, __u32 slot)
{
	struct ol_elephant *e;
	__u32 i, place;

	for (i = 0; i < OL_ELEPHANT_WAYS; i++) {
		place = slot % OL_ELEPHANT_SETS * OL_ELEPHANT_WAYS + i;
		e = ol_get_elephant(cpu, place);
		if (e && e->taken && ol_same_flow(&e->flow, flow))
			return place;
	}
	return OL_NO_PLACE;
}

/* Is the flow split on this core, so that what this one handles itself is a branch of it? */
__noinline int ol_splits_flow(const struct ol_flow *flow, __u32 slot)
{
	__u32 this_cpu = bpf_get_smp_processor_id();
	struct ol_elephant *e;

	if (!flow)
		return 0;
	e = ol_get_elephant(this_cpu, ol_elephant_of(this_cpu, flow, slot));
	return e && e->state != OL_WHOLE;
}

/* Finds the flow's place, or takes one whose flow is gone. */
__noinline __u32 ol_find_elephant(const struct ol_flow *flow, __u32 slot)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), at, place, i;
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	struct ol_elephant *e;

	if (!flow || !cpu)
		return OL_NO_PLACE;
	at = ol_elephant_of(this_cpu, flow, slot);
	if (at != OL_NO_PLACE)
		return at;
	for (i = 0; i < OL_ELEPHANT_WAYS; i++) {
		place = slot % OL_ELEPHANT_SETS * OL_ELEPHANT_WAYS + i;
		e = ol_get_elephant(this_cpu, place);
		if (e && ol_elephant_gone(e, cpu->now))
			at = place;
	}
	e = ol_get_elephant(this_cpu, at);
	if (!e)
		return OL_NO_PLACE;
	__builtin_memset(e, 0, sizeof(*e));
	e->flow = *flow;
	e->window = cpu->now;
	e->seq = cpu->seq - 1;
	e->taken = 1;
	return at;
}

/* The lanes that are branches. */
static __always_inline struct ol_lanes *ol_branches(struct ol_policy *policy)
{
	return &policy->stage[policy->split_stage == OL_STAGE_TUNNEL ? OL_STAGE_TUNNEL
								     : OL_STAGE_NIC];
}

/*
 * Has a branch handled what a flow sent to it up to poll seq? Its core may still have
 * what it has handed on in its backlog.
 */
__noinline int ol_branch_left(__u32 branch, __u32 tunnel, __u32 seq)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), core = this_cpu, lane;
	struct ol_policy *policy = ol_get_policy();
	__u32 head = 0, tail = 0;
	__u64 handed;

	if (!policy || branch > OL_BRANCHES)
		return 0;
	lane = ol_branch_lane(policy, this_cpu, branch);
	if (lane < OL_MAX_LANES)
		core = ol_branches(policy)->cpu[ol_lane_index(lane)];
	if (policy->split_stage == OL_STAGE_TUNNEL) {
		handed = ol_handed_on_by(this_cpu, tunnel, seq);
		if (!handed || !ol_backlog_drained(core, handed))
			return 0;
	} else if (branch == OL_BRANCH_HERE) {
		return ol_pass_drained(this_cpu, tunnel, seq);
	} else if (!ol_branch_ring_drained(this_cpu, core, tunnel, seq)) {
		return 0;
	}
	if (core != this_cpu && ol_backlog(core, &head, &tail) && head != tail &&
	    !ol_backlog_awaited(core, bpf_ktime_get_ns()))
		return 0;
	if (!policy->split_second || lane >= OL_MAX_LANES)
		return 1;
	core = policy->stage[OL_STAGE_TUNNEL].cpu[ol_lane_index(lane)];
	return !ol_backlog(core, &head, &tail) || head == tail ||
	       ol_backlog_awaited(core, bpf_ktime_get_ns());
}

/* Which of its branches hold frames of a flow no more? */
static __always_inline void ol_branches_left(struct ol_elephant *e, __u64 now, __u32 tunnel)
{
	__u32 i;

	for (i = 0; i <= OL_BRANCHES; i++)
		if (e->used & 1U << i && i != e->branch &&
		    (now - e->window > OL_MARK_LIFE_NS || ol_branch_left(i, tunnel, e->last[i])))
			e->used &= ~(1U << i);
}

/*
 * A flow takes the first free one of so many places among the merging, in a row. One is another
 * flow's after OL_MERGING_GONE_MS without a frame.
 */
#define OL_MERGING_TRIES 8

/* The elephant's place among the merging, or NULL: it was given to another flow. */
static __always_inline struct ol_merging *ol_get_merging(const struct ol_elephant *e)
{
	struct ol_merging *g = e->merge ? ol_at(&ol_mergings, e->merge - 1) : NULL;

	return g && g->key == e->key ? g : NULL;
}

/* Gives a place up, and its flow with it. */
static __always_inline void ol_leave_merging(struct ol_merging *g)
{
	__u64 key = g->key;

	bpf_map_delete_elem(&ol_merging_of, &key);
	OL_WRITE(g->generation, (g->generation | 1) + 1);
	OL_WRITE(g->key, 0);
}

/* Of two cores one takes a place. */
static __always_inline int ol_take_place(struct ol_merging *g, __u64 key, __u64 now)
{
	__u64 was = g->key;

	if (was && ((__s64)(now - g->seen) < (__s64)OL_MERGING_GONE_MS * 1000000 || g->held))
		return 0;
	if (was)
		ol_leave_merging(g);
	return __sync_val_compare_and_swap(&g->key, 0, key) == 0;
}

/* Has the hooks behind look out for the flow, so that it can be put in order again. */
__noinline int ol_join_merging(__u32 place, __u32 slot)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), i, at;
	struct ol_elephant *e = ol_get_elephant(this_cpu, place);
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	struct ol_merging *g;
	__u64 key;

	if (!e || !cpu || !e->key)
		return 0;
	key = e->key;
	for (i = 0; i < OL_MERGING_TRIES; i++) {
		at = (key + i) % OL_MERGES;
		g = bpf_map_lookup_elem(&ol_mergings, &at);
		if (!g || !ol_take_place(g, key, cpu->now))
			continue;
		g->seen = cpu->now;
		g->slot = slot;
		OL_WRITE(g->ifindex, 0);
		OL_WRITE(g->ambiguous, 0);
		/* The same flow in another tunnel has one already: this one stays whole. */
		if (bpf_map_update_elem(&ol_merging_of, &key, &at, BPF_NOEXIST)) {
			OL_WRITE(g->key, 0);
			return 0;
		}
		e->merge = at + 1;
		return 1;
	}
	return 0;
}

/* Can a flow of that protocol be split so that it is put in order again? */
static __always_inline int ol_can_order(__u8 proto)
{
	__u32 *why = ol_at(&ol_unnumbered, 0);

	return ol_merges() && (proto != OL_IPPROTO_UDP || (why && !*(volatile __u32 *)why));
}

/* May the flow be split now, as far as its order is concerned? */
static __always_inline int ol_order_kept(struct ol_elephant *e, __u32 place, __u32 slot)
{
	struct ol_merging *g;

	g = ol_get_merging(e);
	if (!g) {
		e->merge = 0;
		e->key = ol_inner_hash(&e->flow, ol_key0, ol_key1);
		ol_join_merging(place, slot);
		return 0;
	}
	/* The hook in front of its pod has seen it: what came before has gone through it. */
	return ol_can_order(e->flow.proto) && g->ifindex && !g->ambiguous && !g->held;
}

/*
 * Has nothing of a flow that joined been left anywhere? It came by this core since: what that
 * had handled when its last poll ended has entered the resequencer, and when as much has left
 * it, that is on the pod's core. As a whole the flow goes on by this core's backlog.
 */
static __always_inline int ol_merged(struct ol_elephant *e, const struct ol_policy *policy,
				     __u32 tunnel, __u64 now)
{
	const struct ol_lanes *lanes = &policy->stage[OL_STAGE_POD];
	struct ol_merging *g = ol_get_merging(e);
	__u64 handed;
	__u32 core;

	if (!g || !lanes->nr)
		return 1;
	if (g->held || !ol_branch_left(OL_BRANCH_HERE, tunnel, e->seq))
		return 0;
	if (OL_READ(g->left) + OL_READ(g->refused) != OL_READ(g->entered) &&
	    (__s64)(now - e->joined) < (__s64)OL_JOINED_MS * 1000000)
		return 0;
	core = lanes->cpu[ol_lane_index(g->behind % lanes->nr)];
	/* Not the time of the last poll: this core may have stood still for a branch since. */
	handed = bpf_ktime_get_ns();
	return core == bpf_get_smp_processor_id() || ol_backlog_drained(core, handed) ||
	       ol_backlog_awaited(core, handed);
}

/* The first frame of a flow in a poll: split it, or have it join? */
__noinline int ol_elephant_turn(__u32 place, __u32 slot, __u32 tunnel)
{
	__u32 this_cpu = bpf_get_smp_processor_id();
	struct ol_elephant *e = ol_get_elephant(this_cpu, place);
	struct ol_policy *policy = ol_get_policy();
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	struct ol_slot *s = ol_get_slot(this_cpu, OL_STAGE_NIC, slot);
	struct ol_merging *g;
	int wish, ordered;

	if (!e || !policy || !cpu || !s)
		return 0;
	ordered = ol_ordered(policy->split_protos, e->flow.proto);
	g = ol_get_merging(e);
	if (e->state != OL_WHOLE && e->epoch != policy->split_epoch) {
		/* Lanes and resequencers are not what they were, and were empty since. */
		e->state = OL_WHOLE;
		e->astray = 0;
		if (g)
			ol_leave_merging(g);
		g = NULL;
		e->merge = 0;
	}
	wish = ol_elephant(e, cpu->now, policy->split_frames, policy->split_bytes) &&
	       policy->split_batch && ol_get_set(policy, this_cpu)->nr &&
	       !ol_unwatched(policy, cpu->now);
	if (g)
		g->seen = cpu->now;
	if (ordered && e->state != OL_WHOLE &&
	    (!g || !ol_can_order(e->flow.proto) || g->ambiguous ||
	     ol_unseen(e, cpu->now, OL_READ(g->passed))))
		e->astray = 1;
	/* Nothing tells where its order is to begin again, until it is whole. */
	if (e->astray || e->fragments)
		wish = 0;
	switch (e->state) {
	case OL_WHOLE:
		if (!wish) {
			if (g && !e->elephant) {
				ol_leave_merging(g);
				e->merge = 0;
			}
			break;
		}
		/* Only from the stock path, and once nothing of the flow is on it. */
		if ((ordered && !ol_order_kept(e, place, slot)) ||
		    (policy->split_stage == OL_STAGE_NIC && s->lane != OL_LANE_LOCAL) ||
		    !ol_branch_left(OL_BRANCH_HERE, tunnel, e->seq))
			break;
		e->state = OL_SPLIT;
		e->epoch = policy->split_epoch;
		e->left = e->used = 0;
		e->begins = 1;
		e->since = e->turned = cpu->now;
		ol_count(OL_CNT_SPLIT_BEGUN, 1);
		break;
	case OL_SPLIT:
		if (wish)
			break;
		e->state = OL_JOINS;
		e->joined = cpu->now;
		e->left = 0;
		e->branch = OL_BRANCH_HERE;
		e->used |= 1U << OL_BRANCH_HERE;
		break;
	case OL_JOINS:
		if (wish) {
			e->state = OL_SPLIT;
			e->left = 0;
			break;
		}
		ol_branches_left(e, cpu->now, tunnel);
		if (e->used == 1U << OL_BRANCH_HERE && ol_merged(e, policy, tunnel, cpu->now)) {
			e->state = OL_WHOLE;
			/* The merge looks at its numbers no more. */
			if (g) {
				OL_WRITE(g->generation, (g->generation | 1) + 1);
				/* Not before the hook in front of its pod has seen it anew. */
				if (e->astray)
					OL_WRITE(g->ifindex, 0);
			}
			e->astray = 0;
			ol_count(OL_CNT_SPLIT_ENDED, 1);
		}
		break;
	}
	e->seq = cpu->seq;
	return 0;
}

/* What a lane's core has to do: frames in its ring, or packets in its backlog. None: ~0. */
static __always_inline __u32 ol_branch_load(const struct ol_policy *policy, __u32 core)
{
	struct ol_leave *leave = bpf_map_lookup_elem(&ol_leaves, &core);
	__u32 head = 0, tail = 0;
	struct ol_ring ring;

	if (!leave || OL_READ(leave->leaving))
		return ~0U;
	if (policy->split_stage == OL_STAGE_TUNNEL)
		return ol_backlog(core, &head, &tail) ? tail - head : 0;
	/* A thread that may run elsewhere is none. */
	if (OL_READ(leave->strayed) || !ol_get_ring(core, OL_CLASS_BULK, &ring))
		return ~0U;
	return ol_ring_from(&ring, ring.consumer);
}

/* What is under way of a flow whose place among the merging this is. */
static __always_inline struct ol_cuts *ol_get_cuts(__u32 at)
{
	return bpf_map_lookup_elem(&ol_cuts, &at);
}

/* Ends the run under way, and takes off those that have left the merge. */
__noinline int ol_cut_at(__u32 at, __u64 now)
{
	struct ol_merging *g = bpf_map_lookup_elem(&ol_mergings, &at);
	struct ol_cuts *c = ol_get_cuts(at);
	__u32 i, next;

	if (!g || !c)
		return 0;
	next = OL_READ(g->next);
	for (i = 0; i < OL_CUTS && ol_cut_passed(c, next, now); i++)
		;
	ol_cut(c);
	ol_cut_passed(c, next, now);
	return 0;
}

/* What a branch of this core's flows has to do. None, or one whose lane leaves: ~0. */
__noinline __u32 ol_load_of(__u32 branch)
{
	struct ol_policy *policy = ol_get_policy();
	struct ol_lanes *lanes;
	__u32 lane;

	if (!policy)
		return ~0U;
	lane = ol_branch_lane(policy, bpf_get_smp_processor_id(), branch);
	lanes = ol_branches(policy);
	if (lane >= OL_MAX_LANES || lane >= lanes->nr || lanes->instead[lane] != lane)
		return ~0U;
	return ol_branch_load(policy, lanes->cpu[lane]);
}

/*
 * The branch that takes the flow's next micro-flow, of so many frames, which are of so many
 * packets as they have come here, or OL_NO_ROOM: none does. at: the flow's place among the
 * merging, or OL_MERGES. joins: it is to be this core.
 */
__noinline __u32 ol_find_branch(__u32 at, __u32 *frames, __u32 segs, int joins)
{
	struct ol_offers o = {.best.lane = OL_BRANCHES};
	struct ol_policy *policy = ol_get_policy();
	struct ol_cpu *cpu = ol_get_cpu(bpf_get_smp_processor_id());
	struct ol_cuts *c = ol_get_cuts(at);
	__u32 i, load, branch;

	if (!policy || !cpu || !c || !frames)
		return OL_BRANCH_HERE;
	ol_cut_at(at, cpu->now);
	if (ol_cuts_lost(c, cpu->now))
		c = ol_get_cuts(OL_MERGES);
	if (!c)
		return OL_BRANCH_HERE;
	for (i = 0; i < OL_BRANCHES && !joins; i++) {
		load = ol_load_of(i);
		if (load != ~0U)
			ol_offer(&o, c, i, load, *frames);
	}
	/* Backlogs hold packets as GRO has made them. */
	branch = ol_take_offer(&o, c, policy->split_here, *frames / segs, *frames);
	if (branch == OL_NO_ROOM)
		*frames = OL_CUTS_REFUSED;
	return branch;
}

/* The flow's order begins with a number. */
__noinline int ol_begin_merging(__u32 place, __u32 seq)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), i;
	struct ol_elephant *e = ol_get_elephant(this_cpu, place);
	struct ol_policy *policy = ol_get_policy();
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	struct ol_merging *g;
	struct ol_cuts *c;

	if (!e || !policy || !cpu)
		return 0;
	g = ol_get_merging(e);
	c = ol_get_cuts(e->merge - 1);
	if (!g || !c)
		return 0;
	e->begins = 0;
	ol_cuts_begin(c, seq, cpu->now);
	OL_WRITE(g->entered, 0);
	OL_WRITE(g->left, 0);
	OL_WRITE(g->refused, 0);
	OL_WRITE(g->next, seq);
	OL_WRITE(g->first, seq);
	OL_WRITE(g->behind, ol_get_set(policy, this_cpu)->behind);
	for (i = 0; i < OL_ALL_BRANCHES; i++)
		OL_WRITE(g->sent[i], seq);
	OL_WRITE(g->generation, g->generation | 1);
	return 0;
}

/* Notes what a branch is sent, in sequence numbers, before it can be seen to have come. */
static __always_inline void ol_note_sent(struct ol_elephant *e, __u32 branch, __u32 end)
{
	struct ol_merging *g = ol_get_merging(e);
	struct ol_cuts *c = ol_get_cuts(e->merge - 1);

	if (!g || !c || e->begins || branch >= OL_ALL_BRANCHES)
		return;
	if (e->flow.proto == OL_IPPROTO_UDP)
		ol_cuts_sent(c, branch, end);
	if (ol_after(end, g->sent[branch]))
		OL_WRITE(g->sent[branch], end);
}

/* What a frame is, to the core that splits its flow. */
struct ol_part {
	__u32 slot;
	__u32 tunnel;
	__u32 len;
	__u32 segs;  /* packets that it was on the wire */
	__u32 again; /* of the flow of the frame before, in the same poll */
	__u32 seq;   /* what it brings: of TCP, the same number twice for nothing; */
	__u32 end;   /* of UDP one number of ours, where it gets one */
};

/*
 * What takes a frame: a branch, OL_BRANCH_HERE, OL_NO_BRANCH where its flow is not split, or
 * OL_NO_ROOM.
 */
__noinline __u32 ol_split(const struct ol_flow *flow, struct ol_part *part)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), stage = OL_STAGE_NIC, place, branch;
	struct ol_recent *last = bpf_map_lookup_elem(&ol_recents, &stage);
	struct ol_policy *policy = ol_get_policy();
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	struct ol_elephant *e;
	int ordered, numbers, counts, joins;

	if (!flow || !part || !last || !policy || !cpu)
		return OL_NO_BRANCH;
	if (part->again) {
		place = last->place;
	} else {
		place = flow->fragment == OL_FRAG_LATER ? OL_NO_PLACE
							: ol_find_elephant(flow, part->slot);
		/* The last flow is that of a whole packet: a fragment is none to compare with. */
		if (flow->fragment == OL_FRAG_WHOLE)
			last->place = place;
	}
	e = ol_get_elephant(this_cpu, place);
	if (!e)
		return OL_NO_BRANCH;
	/* Later fragments tell no ports, and would not stay with their datagram. */
	if (flow->fragment != OL_FRAG_WHOLE)
		e->fragments = 1;
	if (e->seq != cpu->seq)
		ol_elephant_turn(place, part->slot, part->tunnel);
	e->frames += part->segs;
	e->bytes += part->len;
	if (e->state == OL_WHOLE || flow->fragment != OL_FRAG_WHOLE)
		return OL_NO_BRANCH;
	ordered = ol_ordered(policy->split_protos, flow->proto);
	numbers = ordered && flow->proto == OL_IPPROTO_UDP;
	if (numbers) {
		part->seq = e->number;
		part->end = e->number + 1;
	}
	if (e->begins && ordered) {
		/* Numbers begin with data. */
		if (part->seq == part->end)
			return OL_NO_BRANCH;
		ol_begin_merging(place, part->seq);
	}
	if (!e->left) {
		joins = e->state == OL_JOINS;
		counts = numbers && !e->astray && ol_get_merging(e);
		e->left = joins ? OL_UNORDERED_BATCH : ol_batch_of(ordered, policy->split_batch);
		e->branch = ol_find_branch(counts ? e->merge - 1 : OL_MERGES, &e->left,
					   part->segs ? part->segs : 1, joins);
		if (e->branch != OL_NO_ROOM && !joins)
			ol_count(OL_CNT_MICROFLOWS, 1);
	}
	e->left -= e->left < part->segs ? e->left : part->segs;
	branch = e->branch;
	if (branch > OL_ALL_BRANCHES)
		return OL_NO_BRANCH;
	ol_count(OL_CNT_SPLIT, part->segs);
	if (branch == OL_NO_ROOM) {
		ol_count(OL_CNT_NO_ROOM, part->segs);
		return branch;
	}
	if (numbers)
		e->number++;
	e->used |= 1U << branch;
	e->last[branch] = cpu->seq;
	if (part->seq != part->end)
		ol_note_sent(e, branch, part->end);
	return branch;
}

#endif
