/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * MFLOW's policy: which flow is too much for one core, and which branch takes the next
 * micro-flow of it. Inputs in, decision out; no maps, no helpers.
 */
#ifndef OVERLANE_SPLIT_H
#define OVERLANE_SPLIT_H

#include "abi.h"
#include "parse.h"

/* Flows are judged by windows of so many ns. */
#define OL_SPLIT_WINDOW_NS 10000000
/* An elephant is a flow that sent too much for one core in so many of them in a row ... */
#define OL_SPLIT_HEAVY 3
/* ... until it has sent less than half of that in so many. */
#define OL_SPLIT_LIGHT 50
/* A place is another flow's after so many ns without a frame, that of a split flow later. */
#define OL_WHOLE_GONE_NS (2 * OL_SPLIT_WINDOW_NS)
#define OL_SPLIT_GONE_NS 10000000000ULL

/*
 * Where no resequencer restores the order, long micro-flows have no use: one of a NAPI poll
 * spreads the work as evenly, and neither core waits for the other.
 */
#define OL_UNORDERED_BATCH 64

OL_INLINE __u32 ol_batch_of(int ordered, __u32 batch)
{
	return !ordered && batch > OL_UNORDERED_BATCH ? OL_UNORDERED_BATCH : batch;
}

/* The branch that is the core which polls. The others are lanes, by their places in its set. */
#define OL_BRANCH_HERE OL_BRANCHES

/*
 * At the first frame of a poll: is the flow an elephant? frames and bytes: more in a
 * window are too much. A pause counts as what it is, little.
 */
OL_INLINE int ol_elephant(struct ol_elephant *e, __u64 now, __u32 frames, __u32 bytes)
{
	__u64 elapsed = now - e->window;
	__u32 windows;

	if ((__s64)elapsed < OL_SPLIT_WINDOW_NS)
		return e->elephant;
	windows = elapsed / OL_SPLIT_WINDOW_NS > 0xffff ? 0xffff : elapsed / OL_SPLIT_WINDOW_NS;
	if (e->frames / windows > frames || e->bytes / windows > bytes) {
		e->heavy = e->heavy < OL_SPLIT_HEAVY ? e->heavy + 1 : OL_SPLIT_HEAVY;
		e->light = 0;
	} else {
		e->heavy = 0;
		if (e->frames / windows > frames / 2 || e->bytes / windows > bytes / 2)
			e->light = 0;
		else if (windows + e->light < OL_SPLIT_LIGHT)
			e->light += windows;
		else
			e->light = OL_SPLIT_LIGHT;
	}
	e->frames = e->bytes = 0;
	e->window = now;
	e->elephant = e->elephant ? e->light < OL_SPLIT_LIGHT : e->heavy >= OL_SPLIT_HEAVY;
	return e->elephant;
}

/* Is the flow gone, and its place another's? */
OL_INLINE int ol_elephant_gone(const struct ol_elephant *e, __u64 now)
{
	return !e->taken ||
	       (__s64)(now - e->window) >
		       (__s64)(e->state == OL_WHOLE ? OL_WHOLE_GONE_NS : OL_SPLIT_GONE_NS);
}

/*
 * A flow that comes, and has not been seen in front of its pod for so many ns, goes another
 * way there than by its resequencer. What is seen is what came without pauses.
 */
#define OL_SPLIT_UNSEEN_NS 100000000
#define OL_SPLIT_PAUSE_NS 20000000

/* At the first frame of a poll: does the flow go another way? passed: when it was seen last. */
OL_INLINE int ol_unseen(struct ol_elephant *e, __u64 now, __u64 passed)
{
	if (passed != e->passed || now - e->turned > OL_SPLIT_PAUSE_NS) {
		e->passed = passed;
		e->since = now;
	}
	e->turned = now;
	return now - e->since > OL_SPLIT_UNSEEN_NS;
}

/* May flows of a protocol be split? protos: of enum ol_split_proto. */
OL_INLINE int ol_splits(__u32 protos, __u8 proto)
{
	return (proto == OL_IPPROTO_UDP && protos & OL_SPLIT_UDP) ||
	       (proto == OL_IPPROTO_TCP && protos & OL_SPLIT_TCP);
}

/* Is a split flow put in order again? */
OL_INLINE int ol_ordered(__u32 protos, __u8 proto)
{
	return proto != OL_IPPROTO_UDP || protos & OL_SPLIT_NUMBERED;
}

/*
 * What a frame of ours has in front of it as XDP's metadata: the last bits of its number,
 * and that it has one.
 */
OL_INLINE __u32 ol_numbered(__u32 magic, __u32 number)
{
	return (magic & ~(OL_TAG_NUMBERS - 1)) | (number & (OL_TAG_NUMBERS - 1));
}

/* The whole number by its last bits: the last one up to what its branch was sent. */
OL_INLINE __u32 ol_number_of(__u32 bits, __u32 sent)
{
	return sent - 1 - ((sent - 1 - bits) & (OL_TAG_NUMBERS - 1));
}

/* A lane as one that could take the next micro-flow. */
struct ol_branch {
	__u32 lane; /* the branch that it is, OL_BRANCHES: there is none */
	__u32 used; /* frames that it holds */
};

/* Of two lanes that one which holds less; the first of two that hold the same. */
OL_INLINE void ol_better_branch(struct ol_branch *best, __u32 lane, __u32 used)
{
	if (best->lane >= OL_BRANCHES || used < best->used) {
		best->lane = lane;
		best->used = used;
	}
}

/*
 * The branch of the next micro-flow: the lane that holds least. Where the polling core takes
 * part, it does while that lane has work for the time that a poll takes, three quarters
 * of a micro-flow: so either does as much as it can, and a lane that has done its part gets
 * the next before it falls asleep (to wake it up takes as long as thirty frames).
 */
OL_INLINE __u32 ol_next_branch(const struct ol_branch *best, int here, __u32 batch)
{
	if (best->lane >= OL_BRANCHES || (here && best->used > batch * 3 / 4))
		return OL_BRANCH_HERE;
	return best->lane;
}

#endif
