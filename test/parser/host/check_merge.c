// SPDX-License-Identifier: Apache-2.0
/*
 * bpf/merge.h at work: a flow whose segments go by several branches, first in, first out
 * each, that advance at random. Segments are lost on the wire, and sent again; in branches,
 * too. What comes out of the merge must be in order but for what was lost, and everything
 * must come out.
 */
#include <string.h>
#include "check.h"
#include "merge.h"

enum { SEGMENTS = 4000, DEPTH = 8192, BRANCHES = 3 };

struct segment {
	__u32 seq, end;
};

struct queue {
	struct segment at[DEPTH];
	__u32 head, tail;
};

static struct queue lane[OL_ALL_BRANCHES], waiting[OL_ALL_BRANCHES];
static __u32 sent[OL_ALL_BRANCHES];
static struct ol_merge m;
static __u32 got, expired, gaps; /* the end of what came out in order so far */
static __u32 late, out;		 /* segments that came out, those behind what had */

static void leaves(const struct segment *s)
{
	out++;
	if (ol_after(got, s->seq))
		late++;
	if (ol_after(s->end, got))
		got = s->end;
}

/* What the merge point does when it is asked for a packet. patient: nothing is given up. */
static int take(int patient)
{
	__u32 b, best = OL_ALL_BRANCHES;
	struct segment *s;

	for (b = 0; b < OL_ALL_BRANCHES; b++) {
		struct queue *q = &waiting[b];

		if (q->head == q->tail)
			continue;
		if (best == OL_ALL_BRANCHES ||
		    ol_after(waiting[best].at[waiting[best].head % DEPTH].seq,
			     q->at[q->head % DEPTH].seq))
			best = b;
	}
	if (best == OL_ALL_BRANCHES)
		return 0;
	s = &waiting[best].at[waiting[best].head % DEPTH];
	if (ol_after(s->seq, m.next)) {
		if (ol_merge_lost(&m, sent)) {
			gaps++;
		} else if (!patient) {
			expired++;
			ol_merge_give_up(&m, sent);
		} else {
			return 0;
		}
	}
	waiting[best].head++;
	ol_merge_leaves(&m, s->end);
	leaves(s);
	return 1;
}

static void arrive(__u32 b)
{
	struct segment *s = &lane[b].at[lane[b].head++ % DEPTH];

	if (ol_merge_arrives(&m, b, s->seq, s->end) == OL_MERGE_WAIT)
		waiting[b].at[waiting[b].tail++ % DEPTH] = *s;
	else
		leaves(s);
	while (take(1))
		;
}

static void send_to(__u32 b, __u32 seq, __u32 end, int dropped)
{
	if (ol_after(end, sent[b]))
		sent[b] = end;
	if (dropped)
		return;
	lane[b].at[lane[b].tail++ % DEPTH] = (struct segment){seq, end};
}

/* One flow. wire, branch: of 1000 segments so many are lost there. */
static void flow(int wire, int branch, __u32 batch)
{
	__u32 seq = rnd(), lost[SEGMENTS][2], nr_lost = 0, b = 0, left = 0, i, all = 0, held;

	memset(lane, 0, sizeof(lane));
	memset(waiting, 0, sizeof(waiting));
	memset(&m, 0, sizeof(m));
	got = seq;
	expired = gaps = late = out = 0;
	for (i = 0; i < OL_ALL_BRANCHES; i++)
		sent[i] = seq;
	ol_merge_begin(&m, 1, seq);
	for (i = 0; i < SEGMENTS; i++) {
		__u32 end = seq + 1 + rnd() % 1448;

		if (!left--) {
			b = rnd() % BRANCHES;
			left = batch - 1;
		}
		if ((int)(rnd() % 1000) < wire) {
			lost[nr_lost][0] = seq;
			lost[nr_lost++][1] = end;
		} else {
			int dropped = (int)(rnd() % 1000) < branch;

			send_to(b, seq, end, dropped);
			all += !dropped;
		}
		seq = end;
		/* Now and then what was lost is sent again. */
		if (nr_lost && rnd() % 50 == 0) {
			nr_lost--;
			send_to(b, lost[nr_lost][0], lost[nr_lost][1], 0);
			all++;
		}
		while (rnd() % 3) {
			__u32 l = rnd() % BRANCHES;

			if (lane[l].head != lane[l].tail)
				arrive(l);
		}
	}
	for (i = 0; i < BRANCHES; i++)
		while (lane[i].head != lane[i].tail)
			arrive(i);
	for (held = 0, i = 0; i < OL_ALL_BRANCHES; i++)
		held += waiting[i].tail - waiting[i].head;
	/* Without losses in branches nothing is left for the timer to do. */
	MUST(branch || !held, "%u wait for ever, wire %d, batch %u", held, wire, batch);
	MUST(wire || branch || (!late && !gaps), "%u late, %u gaps, and nothing was lost", late,
	     gaps);
	while (take(0))
		;
	MUST(out == all, "%u of %u came out", out, all);
	MUST(branch || !expired, "%u given up without need", expired);
}

/* Everything in order, however the branches advance; numbers wrap around. */
int main(int argc, char **argv)
{
	int i;

	if (argc > 1)
		rnd_state = strtoull(argv[1], NULL, 10);
	for (i = 0; i < 30; i++) {
		flow(0, 0, 1 + rnd() % 256);
		flow(2, 0, 1 + rnd() % 256);
		flow(30, 0, 1 + rnd() % 64);
		flow(5, 5, 1 + rnd() % 64);
	}
	return 0;
}
