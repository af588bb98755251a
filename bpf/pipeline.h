/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * FALCON's policy: (flow, stage) -> lane. Inputs in, decision out; no maps, no
 * helpers. When a change may happen is the order guard's matter, not ours.
 */
#ifndef OVERLANE_PIPELINE_H
#define OVERLANE_PIPELINE_H

#include "abi.h"
#include "parse.h"

/* What is known of a lane's load: its queue first, then its core's utilisation. */
struct ol_load {
	__u32 queue; /* packets */
	__u32 busy;  /* 1/1000 */
};

/*
 * Two different candidates out of nr lanes, from the slot and the stage,
 * so that the stages of one flow fall on unrelated cores. With one lane both
 * are that lane.
 */
OL_INLINE void ol_candidates(__u32 slot, __u32 stage, __u32 nr, __u32 *c1, __u32 *c2)
{
	__u32 h = (slot + 1) * 0x9e3779b1u + stage * 0x85ebca6bu;

	/* Mixed well enough for each stage to be unrelated to the next, on two lanes too. */
	h = (h ^ h >> 16) * 0x7feb352du;
	h = (h ^ h >> 15) * 0x846ca68bu;
	h ^= h >> 16;
	*c1 = h % nr;
	*c2 = nr < 2 ? *c1 : (*c1 + 1 + (h >> 16) % (nr - 1)) % nr;
}

/* Is a clearly less loaded than b? Queues within `slack` of each other count as equal. */
OL_INLINE int ol_less_loaded(const struct ol_load *a, const struct ol_load *b, __u32 slack)
{
	if ((__u64)a->queue + slack < b->queue)
		return 1;
	if ((__u64)b->queue + slack < a->queue)
		return 0;
	return a->busy + 200 < b->busy;
}

#endif
