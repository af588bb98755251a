/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What of a split flow of datagrams is under way, as the core that splits it knows. The packets
 * that one branch gets in a row are a run; a cut ends it. The merge tells how far it has come in
 * the flow's order, and so which runs have left it.
 *
 * Packets wait at the merge while one before them is on another branch, and there is room for
 * OL_MERGE_DEPTH of each branch. So a branch gets a run only while it fits in there with all that
 * the branch has under way, and what fits nowhere is dropped before it costs anything: as much as
 * that is under way only where all branches are busy or one stands still. TCP, whose window is as
 * much, and of which GRO makes few packets, is not counted.
 *
 * Inputs in, decision out; no maps, no helpers.
 */
#ifndef OVERLANE_CUTS_H
#define OVERLANE_CUTS_H

#include "merge.h"
#include "split.h"

/* A flow begins to be split with this number: nothing is under way. */
OL_INLINE void ol_cuts_begin(struct ol_cuts *c, __u32 first, __u64 now)
{
	int i;

	c->made = c->passed = 0;
	c->run = 0;
	c->branch = OL_BRANCH_HERE;
	c->end = c->next = first;
	c->since = now;
#ifndef HOST_TEST
#pragma unroll
#endif
	for (i = 0; i < OL_ALL_BRANCHES; i++)
		c->under[i] = 0;
}

/* Ends the run under way; one that there is no place to keep goes on. */
OL_INLINE void ol_cut(struct ol_cuts *c)
{
	struct ol_cut *cut = &c->cut[c->made % OL_CUTS];

	if (!c->run || c->made - c->passed >= OL_CUTS)
		return;
	cut->end = c->end;
	cut->packets = c->run;
	cut->branch = c->branch;
	c->made++;
	c->run = 0;
}

/* The packet whose number ends there is sent to a branch. */
OL_INLINE void ol_cuts_sent(struct ol_cuts *c, __u32 branch, __u32 end)
{
	__u32 from = c->branch;

	if (branch >= OL_ALL_BRANCHES || from >= OL_ALL_BRANCHES)
		return;
	if (branch != from) {
		ol_cut(c);
		c->under[from] -= c->run;
		c->under[branch] += c->run;
	}
	c->branch = branch;
	c->end = end;
	c->run++;
	c->under[branch]++;
}

/* The merge has come so far: takes off the run that began first, if it has passed. */
OL_INLINE int ol_cut_passed(struct ol_cuts *c, __u32 next, __u64 now)
{
	const struct ol_cut *cut = &c->cut[c->passed % OL_CUTS];

	if (next != c->next || (c->passed == c->made && !c->run))
		c->since = now;
	c->next = next;
	if (c->passed == c->made || ol_after(cut->end, next) || cut->branch >= OL_ALL_BRANCHES)
		return 0;
	c->under[cut->branch] -= cut->packets;
	c->passed++;
	return 1;
}

/*
 * Where something is under way, and the merge has not come on for so many ns, all of that may be
 * lost, or come to the pod another way: only what comes behind can tell. What is under way does
 * not count then.
 */
#define OL_CUTS_LOST_NS 200000000

OL_INLINE int ol_cuts_lost(const struct ol_cuts *c, __u64 now)
{
	return (__s64)(now - c->since) > OL_CUTS_LOST_NS;
}

/* Is there room at the merge for so many more of a branch? */
OL_INLINE int ol_cuts_fit(const struct ol_cuts *c, __u32 branch, __u32 frames)
{
	return c->made - c->passed < OL_CUTS && c->under[branch] + frames <= OL_MERGE_DEPTH;
}

/* The lanes that could take the next run, of so many frames. */
struct ol_offers {
	struct ol_branch best; /* of those with room */
	int full;	       /* there are others */
};

/* One that holds so many packets. */
OL_INLINE void ol_offer(struct ol_offers *o, const struct ol_cuts *c, __u32 lane, __u32 holds,
			__u32 frames)
{
	if (ol_cuts_fit(c, lane, frames))
		ol_better_branch(&o->best, lane, holds);
	else
		o->full = 1;
}

/*
 * The branch of the next run, which is of batch packets as they have come here, or
 * OL_ALL_BRANCHES: there is no room. here: the polling core takes part.
 */
OL_INLINE __u32 ol_take_offer(const struct ol_offers *o, const struct ol_cuts *c, int here,
			      __u32 batch, __u32 frames)
{
	int fits = ol_cuts_fit(c, OL_BRANCH_HERE, frames);

	if (o->best.lane < OL_BRANCHES)
		return ol_next_branch(&o->best, here && fits, batch);
	return fits && (here || !o->full) ? OL_BRANCH_HERE : OL_ALL_BRANCHES;
}

/* So many frames are dropped in a row where there is no room. */
#define OL_CUTS_REFUSED 16

#endif
