/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * PRISM's policy: which class does a flow belong to? The rules are a list of which
 * the first that fits wins, however many there are: rules that look at the same
 * fields have one shape, and one look-up finds the best of a shape. Inputs in,
 * decision out; no maps, no helpers.
 */
#ifndef OVERLANE_PRIORITY_H
#define OVERLANE_PRIORITY_H

#include "abi.h"
#include "parse.h"

/* The side's address, as words in network byte order. */
OL_INLINE void ol_flow_addr(const struct ol_flow *f, int dst, __u32 addr[4])
{
	const __u64 *a = &f->addr[f->v6 && dst ? 2 : 0];

	if (!f->v6) {
		addr[0] = dst ? (__u32)a[0] : (__u32)(a[0] >> 32);
		addr[1] = addr[2] = addr[3] = 0;
		return;
	}
	addr[0] = a[0] >> 32;
	addr[1] = a[0];
	addr[2] = a[1] >> 32;
	addr[3] = a[1];
}

/* What a shape picks from a flow. Returns 0 if no rule of it can fit. */
OL_INLINE int ol_rule_key_of(const struct ol_flow *f, const struct ol_shape *s,
			     struct ol_rule_key *k)
{
	__u32 addr[4] = {};
	int i;

	k->proto = s->fields & OL_FIELD_PROTO ? f->proto : 0;
	k->dscp = s->fields & OL_FIELD_DSCP ? f->dscp : 0;
	k->vni = s->fields & OL_FIELD_VNI ? (__u32)f->tail & 0xffffff : 0;
	k->port = 0;
	if (s->fields & (OL_FIELD_SRC_PORT | OL_FIELD_DST_PORT)) {
		__u32 ports = f->tail >> 32;

		if (!ports)
			return 0;
		/* As they stand in the packet: the source port first. */
		k->port = s->fields & OL_FIELD_DST_PORT ? ports >> 16 : ports & 0xffff;
	}
	if (s->fields & (OL_FIELD_SRC_ADDR | OL_FIELD_DST_ADDR)) {
		if (s->v6 != f->v6)
			return 0;
		ol_flow_addr(f, !!(s->fields & OL_FIELD_DST_ADDR), addr);
	}
	for (i = 0; i < 4; i++)
		k->addr[i] = addr[i] & s->mask[i];
	return 1;
}

/* Lists of flows' times, of which each flow has a place in either. */
#define OL_LAST_LISTS 2
#define OL_LAST_PLACES 4096

/* Us that a frame waits in a lane, at most by far: older times have wrapped. */
#define OL_PRIO_LIFE_US 0x40000000U

/* A is not after b; times in us that wrap. */
OL_INLINE int ol_not_after(__u32 a, __u32 b)
{
	return (__s32)(a - b) <= 0;
}

/* What a core knows of its bulk lane's ring at the beginning of a poll. */
struct ol_lane_look {
	__u32 used;	/* frames in it */
	__u32 consumer; /* where the next one is taken */
	__u32 size;
	int asleep; /* the thread has handled all that it took, and found nothing more */
};

/* Frames that the thread takes at a time (kernel/bpf/cpumap.c, CPUMAP_BATCH). */
#define OL_LANE_BATCH 8

/*
 * How far has the lane come? Watched from the core that fills it, between polls, so
 * that nothing is being added meanwhile. The thread handles a batch before it takes
 * the next, so what it had taken a whole batch ago has been handled. More than the
 * ring's size may have been taken since the last look, and is counted short. Returns
 * 1 if the lane is empty and its thread done.
 */
OL_INLINE int ol_lane_step(struct ol_prio *p, const struct ol_lane_look *l, __u32 last_poll)
{
	__u32 took = l->consumer - p->consumer;

	if (l->consumer < p->consumer)
		took += l->size;
	p->taken += took;
	p->consumer = l->consumer;
	if (!l->used && l->asleep) {
		p->safe = p->empty = last_poll;
		p->armed = 0;
		return 1;
	}
	if (p->armed && !ol_not_after(p->until, p->taken))
		return 0;
	if (p->armed)
		p->safe = p->before;
	p->until = p->taken + l->used + OL_LANE_BATCH;
	p->before = last_poll;
	p->armed = 1;
	return 0;
}

/*
 * Has everything that a flow sent to the lane by `last` been handed on? GRO may hold
 * TCP's for as long as the lane is busy.
 */
OL_INLINE int ol_lane_left(const struct ol_prio *p, __u32 last, int gro)
{
#ifdef OL_MUTANT_NO_GUARD
	return 1;
#endif
	return !last || p->now - last > OL_PRIO_LIFE_US ||
	       ol_not_after(last, gro ? p->empty : p->safe);
}

/*
 * A lane that has not run empty by itself so long after the last latency frame, in
 * us, gets more than its thread can do. It is emptied by refusing what comes: that is
 * lost anyway, and on the stock path the core can do more.
 */
#define OL_PRIO_DRAIN_US 10000

/*
 * The beginning of a poll: where shall bulk go in it? The stock path and the lane
 * meet in this core's queues behind the NIC, first come first served: what has been
 * handed on by one cannot be overtaken by the other. Held back are only what waits
 * in the lane, and what the NIC's GRO holds. lane_empty: and its thread is done.
 */
OL_INLINE void ol_prio_turn(struct ol_prio *p, __u32 window, __u32 table, int lane_empty)
{
	__u32 silence = p->now - p->seen;
	int about = p->ever && silence < window;

	if (silence > OL_PRIO_LIFE_US)
		p->ever = 0;
	if (!p->holds) {
		p->table = table;
		if (about)
			p->demoted = 1;
	}
	if (about)
		return;
	if (lane_empty)
		p->demoted = 0;
	else if (silence > window + OL_PRIO_DRAIN_US)
		p->room = 0;
}

#endif
