/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The merge: packets of a split flow, in whatever order its branches bring them, leave in
 * the order of their sequence numbers. A branch is first in, first out, so what is missing
 * is lost, and not to be waited for, once each branch has brought something behind it or
 * has brought all that it was sent. No timer is needed for that, and no count.
 *
 * Inputs in, decision out; no maps, no helpers.
 */
#ifndef OVERLANE_MERGE_H
#define OVERLANE_MERGE_H

#include "abi.h"
#include "order.h"

/* Further from what is expected than any window is: a flow that began anew. */
#define OL_MERGE_FAR (1U << 30)

#define OL_TCP_FIN 1
#define OL_TCP_SYN 2
#define OL_TCP_RST 4

/*
 * Sequence numbers of a TCP segment: its header, of which 20 bytes are read, and what
 * follows are `len` bytes. Returns 0 if there is nothing to be put in order.
 */
OL_INLINE int ol_tcp_seqs(const __u8 *head, __u32 len, __u32 *seq, __u32 *end)
{
	__u32 header = (head[12] >> 4) * 4, flags = head[13];

	if (header < 20 || len < header || flags & (OL_TCP_SYN | OL_TCP_RST))
		return 0;
	*seq = ol_be32(head + 4);
	*end = *seq + (len - header) + (flags & OL_TCP_FIN ? 1 : 0);
	return *seq != *end;
}

struct ol_merge {
	__u32 generation;
	__u32 next;			/* what is to come */
	__u32 brought[OL_ALL_BRANCHES]; /* the end of what each branch brought ... */
	__u32 given_up;			/* ... or, of those, a bit each, was sent */
};

enum ol_merge_verdict {
	OL_MERGE_GO,
	OL_MERGE_GO_LATE, /* goes as well: the sender that sent it again wants it at once */
	OL_MERGE_WAIT,
	OL_MERGE_FULL, /* it would wait, and there is no room */
};

OL_INLINE void ol_merge_begin(struct ol_merge *m, __u32 generation, __u32 first)
{
	int i;

	m->generation = generation;
	m->next = first;
	m->given_up = 0;
#pragma unroll
	for (i = 0; i < OL_ALL_BRANCHES; i++)
		m->brought[i] = first;
}

/*
 * A packet with the bytes from seq up to end came by a branch, of which so many wait, or by none
 * (OL_ALL_BRANCHES): by another core than the one that splits.
 */
OL_INLINE enum ol_merge_verdict ol_merge_arrives(struct ol_merge *m, __u32 branch, __u32 seq,
						 __u32 end, __u32 waiting)
{
	int far = seq - m->next + OL_MERGE_FAR > 2 * OL_MERGE_FAR;
	int early = !far && ol_after(seq, m->next);

	/* It counts as lost before it came: what its branch brings next is to tell. */
	if (early && waiting >= OL_MERGE_DEPTH)
		return OL_MERGE_FULL;
	if (branch < OL_ALL_BRANCHES && ol_after(end, m->brought[branch])) {
		m->brought[branch] = end;
		m->given_up &= ~(1U << branch);
	}
	if (early)
		return OL_MERGE_WAIT;
	if (!far && seq != m->next && !ol_after(end, m->next))
		return OL_MERGE_GO_LATE;
	m->next = end;
	return OL_MERGE_GO;
}

/* What is to come will not: no branch has it any more. sent: what each was sent last. */
OL_INLINE int ol_merge_lost(const struct ol_merge *m, const __u32 *sent)
{
	int i;

#pragma unroll
	for (i = 0; i < OL_ALL_BRANCHES; i++)
		if (!ol_after(m->brought[i], m->next) && ol_after(OL_READ(sent[i]), m->brought[i]))
			return 0;
	return 1;
}

/* Nothing is waited for any longer: what branches were sent counts as brought. */
OL_INLINE void ol_merge_give_up(struct ol_merge *m, const __u32 *sent)
{
	int i;

#pragma unroll
	for (i = 0; i < OL_ALL_BRANCHES; i++) {
		if (!ol_after(OL_READ(sent[i]), m->brought[i]))
			continue;
		m->brought[i] = OL_READ(sent[i]);
		m->given_up |= 1U << i;
	}
}

/* The first of those that wait leaves. */
OL_INLINE void ol_merge_leaves(struct ol_merge *m, __u32 end)
{
	if (ol_after(end, m->next))
		m->next = end;
}

#endif
