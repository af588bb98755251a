/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Order by time, where no qdisc of ours can be had. Who splits a flow notes from which number
 * on its packets may go when: later than those before, by long enough for each branch to have
 * brought what it was sent. A queue that keeps times (fq) does the rest. What takes longer
 * comes late.
 *
 * Inputs in, decision out; no maps, no helpers.
 */
#ifndef OVERLANE_RESEQUENCE_H
#define OVERLANE_RESEQUENCE_H

#include "abi.h"
#include "order.h"

OL_INLINE const struct ol_note *ol_note_at(const struct ol_notes *n, __u32 i)
{
	return &n->note[i & (OL_NOTES - 1)];
}

/* Is there a note that could not be kept if there were one more? */
OL_INLINE int ol_notes_full(const struct ol_notes *n, __u64 now)
{
	return n->nr >= OL_NOTES - 1 && (__s64)(ol_note_at(n, n->nr + 1)->release - now) > 0;
}

/* When the last of what was noted may go; 0: nothing was. */
OL_INLINE __u64 ol_noted_last(const struct ol_notes *n)
{
	return n->nr ? ol_note_at(n, n->nr - 1)->release : 0;
}

/* A flow begins to be noted. */
OL_INLINE void ol_notes_begin(struct ol_notes *n, __u32 seq)
{
	int i;

	n->nr = n->joins = 0;
	n->front = seq;
#ifndef HOST_TEST
#pragma unroll
#endif
	for (i = 0; i < OL_ALL_BRANCHES; i++)
		n->brought[i] = seq;
}

/*
 * What begins with this number may go at that time; each later than what begins before.
 * Returns 0 for what is sent again, which begins nothing.
 */
OL_INLINE int ol_note_add(struct ol_notes *n, __u32 seq, __u64 release)
{
	struct ol_note *note = &n->note[n->nr & (OL_NOTES - 1)];
	const struct ol_note *last = ol_note_at(n, n->nr - 1);

	if (n->nr) {
		if (!ol_after(seq, last->seq))
			return 0;
		if ((__s64)(release - last->release) <= 0)
			release = last->release + 1;
	}
	OL_WRITE(note->release, release);
	OL_WRITE(note->seq, seq);
	OL_WRITE(n->nr, n->nr + 1);
	return 1;
}

/* When may a packet go that begins with this number? 0: that is not known any more. */
OL_INLINE __u64 ol_note_find(const struct ol_notes *n, __u32 seq)
{
	/* The one that may be written now is left out. */
	__u32 nr = OL_READ(n->nr), low = nr >= OL_NOTES ? nr - OL_NOTES + 1 : 0, high = nr - 1, mid;
	const struct ol_note *note;
	__u64 release;
	int i;

	if (!nr)
		return 0;
#ifndef HOST_TEST
#pragma unroll
#endif
	for (i = 0; i < 8; i++) {
		mid = low + (high - low + 1) / 2;
		if (ol_after(OL_READ(ol_note_at(n, mid)->seq), seq))
			high = mid - 1;
		else
			low = mid;
		if ((__s32)(high - low) < 0)
			high = low;
	}
	note = ol_note_at(n, low);
	release = OL_READ(note->release);
	if (ol_after(OL_READ(note->seq), seq))
		return 0;
	/* It may have been written over meanwhile. */
	return OL_READ(n->nr) - low < OL_NOTES ? release : 0;
}

#endif
