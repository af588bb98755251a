/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What of a split flow is under way, as who splits it knows. The packets that one branch gets in a
 * row are a run; a cut ends it. The merge tells how far it has come in the flow's order, and so
 * which runs have left it.
 *
 * Packets wait at the merge while one before them is on another branch, and there is room for
 * OL_MERGE_DEPTH of each branch. So a branch gets a run only while it fits in there with all that
 * the branch has under way. Where none has room, the run goes to that one which the merge waits
 * for: it waits in the branch, behind what it follows. Two branches that stand still in turn may
 * fill a queue of the merge nevertheless; it drops then, as any queue, so that order is kept.
 *
 * Inputs in, decision out; no maps, no helpers.
 */
#ifndef OVERLANE_CUTS_H
#define OVERLANE_CUTS_H

#include "merge.h"
#include "split.h"

/* A flow begins to be split with this number: nothing is under way. */
OL_INLINE void ol_cuts_begin(struct ol_cuts *c, __u32 first)
{
	int i;

	c->made = c->passed = 0;
	c->run = 0;
	c->branch = OL_BRANCH_HERE;
	c->high = first;
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
	cut->end = c->high;
	cut->packets = c->run;
	cut->branch = c->branch;
	c->made++;
	c->run = 0;
}

/* A packet with the bytes from seq up to end is sent to a branch. */
OL_INLINE void ol_cuts_sent(struct ol_cuts *c, __u32 branch, __u32 seq, __u32 end)
{
	__u32 from = c->branch;

	if (branch >= OL_ALL_BRANCHES || from >= OL_ALL_BRANCHES)
		return;
	/* As the merge will see it: a flow that began anew. */
	if (seq - c->high + OL_MERGE_FAR > 2 * OL_MERGE_FAR) {
		ol_cuts_begin(c, end);
	} else if (branch != from) {
		ol_cut(c);
		c->under[from] -= c->run;
		c->under[branch] += c->run;
	}
	c->branch = branch;
	if (ol_after(end, c->high))
		c->high = end;
	c->run++;
	c->under[branch]++;
}

/* The merge has come so far: takes off the run that began first, if it has passed. */
OL_INLINE int ol_cut_passed(struct ol_cuts *c, __u32 next)
{
	const struct ol_cut *cut = &c->cut[c->passed % OL_CUTS];

	if (c->passed == c->made || ol_after(cut->end, next) || cut->branch >= OL_ALL_BRANCHES)
		return 0;
	c->under[cut->branch] -= cut->packets;
	c->passed++;
	return 1;
}

/* Is there room at the merge for so many more of a branch? */
OL_INLINE int ol_cuts_fit(const struct ol_cuts *c, __u32 branch, __u32 frames)
{
	return c->made - c->passed < OL_CUTS && c->under[branch] + frames <= OL_MERGE_DEPTH;
}

/* The branch that gets what has no room: the one that the merge waits for. */
OL_INLINE __u32 ol_cuts_first(const struct ol_cuts *c)
{
	return c->passed == c->made ? c->branch : c->cut[c->passed % OL_CUTS].branch;
}

#endif
