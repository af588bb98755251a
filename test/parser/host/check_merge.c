// SPDX-License-Identifier: Apache-2.0
/*
 * bpf/merge.h and bpf/cuts.h at work: a flow whose segments go by several branches, first in,
 * first out each, that advance at random. Segments are lost on the wire, and sent again; in
 * branches, too. What comes out of the merge must be in order but for what was lost, and
 * everything must come out. Branches stand still while much more comes than the merge has room
 * for: then what is out of order is dropped, if at all, and not let through.
 */
#include <string.h>
#include "check.h"
#include "cuts.h"

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
static struct ol_cuts cuts, nothing; /* nothing: of a flow that is not counted, as TCP */
static __u64 now;
static __u32 got, expired, gaps; /* the end of what came out in order so far */
static __u32 late, out;		 /* segments that came out, those behind what had */
static __u32 refused, dropped;	 /* segments that the merge had no room for, a lane */
static __u32 last, left; /* the branch that got something last, and what of its run is to come */

static void leaves(const struct segment *s)
{
	out++;
	if (ol_after(got, s->seq))
		late++;
	if (ol_after(s->end, got))
		got = s->end;
}

/* What the resequencer does when it is asked for a packet. patient: nothing is given up. */
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

	switch (ol_merge_arrives(&m, b, s->seq, s->end, waiting[b].tail - waiting[b].head)) {
	case OL_MERGE_WAIT:
		waiting[b].at[waiting[b].tail++ % DEPTH] = *s;
		MUST(waiting[b].tail - waiting[b].head <= OL_MERGE_DEPTH, "too many wait");
		break;
	case OL_MERGE_FULL:
		refused++;
		break;
	default:
		leaves(s);
	}
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

static void begin(__u32 seq)
{
	int i;

	memset(lane, 0, sizeof(lane));
	memset(waiting, 0, sizeof(waiting));
	memset(&m, 0, sizeof(m));
	memset(&cuts, rnd() % 256, sizeof(cuts));
	got = seq;
	expired = gaps = late = out = refused = dropped = left = 0;
	for (i = 0; i < OL_ALL_BRANCHES; i++)
		sent[i] = seq;
	ol_merge_begin(&m, 1, seq);
	ol_cuts_begin(&cuts, seq, now);
}

/* Where a micro-flow begins: what of those before has left the merge is under way no more. */
static void cut(void)
{
	while (ol_cut_passed(&cuts, m.next, now))
		;
	ol_cut(&cuts);
	ol_cut_passed(&cuts, m.next, now);
}

/* One flow. wire, branch: of 1000 segments so many are lost there. */
static void flow(int wire, int branch, __u32 batch)
{
	__u32 seq = rnd(), lost[SEGMENTS][2], nr_lost = 0, b = 0, left = 0, i, all = 0, held;

	begin(seq);
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
	MUST(out == all, "%u of %u came out, %u found no room", out, all, refused);
	MUST(branch || !expired, "%u given up without need", expired);
}

/* Packets that a lane holds at most; more are dropped. */
enum { LANE = 2048 };

/*
 * Sends a datagram by a branch, as bpf/microflow.h does: the least loaded lane of two, or the
 * polling core, takes the next micro-flow. Returns 0 if it is dropped: there was no room.
 */
static int split(__u32 number, struct ol_cuts *c, int here, __u32 batch)
{
	static __u32 b;
	struct ol_offers o = {.best.lane = OL_BRANCHES};
	__u32 i;
	int full;

	if (!left) {
		left = batch;
		cut();
		if (ol_cuts_lost(c, now))
			c = &nothing;
		for (i = 0; i < 2; i++)
			ol_offer(&o, c, i, lane[i].tail - lane[i].head, batch);
		b = ol_take_offer(&o, c, here, batch, batch);
		if (b == OL_ALL_BRANCHES)
			left = OL_CUTS_REFUSED;
	}
	left--;
	now += 1000;
	if (b == OL_ALL_BRANCHES)
		return 0;
	full = lane[b].tail - lane[b].head >= LANE;
	dropped += full;
	ol_cuts_sent(&cuts, b, number + 1);
	send_to(b, number, number + 1, full);
	last = b;
	return 1;
}

/* What is known to be under way is, at least. */
static void counted(void)
{
	__u32 b, more;

	for (b = 0; b < OL_ALL_BRANCHES; b++) {
		more = lane[b].tail - lane[b].head + waiting[b].tail - waiting[b].head;
		MUST(cuts.under[b] >= more, "%u under way by branch %u, and %u are", cuts.under[b],
		     b, more);
	}
}

static const __u32 branches[] = {0, 1, OL_BRANCH_HERE};

/*
 * One branch stands still while thousands of datagrams come, again and again; with `two` another
 * one does as well, for another while. None is let through out of order, and what the merge would
 * have no room for is dropped before a branch gets it; of a flow that is not counted, by the merge.
 */
static void overload(__u32 batch, int two, struct ol_cuts *c)
{
	__u32 number = rnd(), begun = number, i, j, n = 80000, none = 0, latest = 0;
	__u32 still[OL_ALL_BRANCHES] = {};

	begin(number);
	for (i = 0; i < n; i++) {
		if (split(number, c, 1, batch)) {
			number++;
		} else {
			none++;
			latest = i;
		}
		/* One that holds something. */
		if (i < 60000 && i % 20000 == 10000)
			still[last] = i + 5000 + rnd() % 5000;
		if (two && i < 50000 && one_in(3000))
			still[branches[rnd() % 3]] = i + rnd() % 6000;
		for (j = 0; j < 3; j++) {
			__u32 l = branches[j];

			if (still[l] <= i && lane[l].head != lane[l].tail && rnd() % 4)
				arrive(l);
		}
		if (c == &cuts)
			counted();
	}
	for (j = 0; j < 3; j++)
		while (lane[branches[j]].head != lane[branches[j]].tail)
			arrive(branches[j]);
	while (take(0))
		;
	MUST(!late, "%u datagrams came out of order, batch %u", late, batch);
	MUST(out + dropped + refused == number - begun, "%u of %u came out, %u refused", out,
	     number - begun, refused);
	if (c == &nothing) {
		MUST(refused && !none, "%u found no room at the merge, %u before", refused, none);
		return;
	}
	MUST(!refused, "%u found no room at the merge, batch %u", refused, batch);
	MUST(none && latest < n - 5000, "for %u there was no room, at %u of %u the last", none,
	     latest, n);
}

/*
 * More comes than two lanes can do, for long: they do what they can, and nothing that they have
 * done is in vain.
 */
static void busy(__u32 batch, __u32 times)
{
	__u32 number = rnd(), i, j, n = 100000, can = n / times * 2 * 3 / 4;

	begin(number);
	for (i = 0; i < n; i++) {
		number += split(number, &cuts, 0, batch);
		for (j = 0; j < 2 && i % times == 0; j++)
			if (lane[j].head != lane[j].tail && rnd() % 4)
				arrive(j);
		counted();
	}
	MUST(!late && !refused && !dropped, "%u times as much: %u late, %u refused, %u dropped",
	     times, late, refused, dropped);
	MUST(out > can * 9 / 10, "%u times as much: %u came out, %u could", times, out, can);
}

/* Whatever becomes of what is under way, and however many runs that is: there is room again. */
static void check_cuts(void)
{
	__u32 number = rnd(), sent, i, j;
	__u64 until;

	begin(number);
	for (i = 0; i < 2 * OL_CUTS; i++) {
		cut();
		MUST(i < OL_CUTS || !ol_cuts_fit(&cuts, i % OL_ALL_BRANCHES, 1),
		     "run %u is forgotten", i);
		for (j = 0; j < 1 + rnd() % 3; j++)
			ol_cuts_sent(&cuts, i % OL_ALL_BRANCHES, ++number);
	}
	for (j = 0, i = 0; i < OL_ALL_BRANCHES; i++)
		j += cuts.under[i];
	MUST(j == number - m.next, "%u of %u under way", j, number - m.next);
	m.next = number;
	cut();
	cut();
	MUST(!cuts.run && cuts.made == cuts.passed, "runs are under way in the end");
	for (i = 0; i < OL_ALL_BRANCHES; i++)
		MUST(!cuts.under[i] && ol_cuts_fit(&cuts, i, OL_MERGE_DEPTH),
		     "no room by branch %u", i);
	/* All of it is lost behind the branches, and only what comes then can tell. */
	begin(number);
	for (until = now + 3 * OL_CUTS_LOST_NS / 2, sent = 0; now < until; sent += j) {
		j = split(number, &cuts, 1, 64);
		number += j;
		for (i = 0; i < 3; i++)
			lane[branches[i]].head = lane[branches[i]].tail;
	}
	MUST(sent > OL_CUTS_LOST_NS / 2 / 1000, "nothing is sent any more: %u were", sent);
}

/* Everything in order, however the branches advance; numbers wrap around. */
int main(int argc, char **argv)
{
	int i;

	if (argc > 1)
		rnd_state = strtoull(argv[1], NULL, 10);
	check_cuts();
	for (i = 0; i < 30; i++) {
		flow(0, 0, 1 + rnd() % 256);
		flow(2, 0, 1 + rnd() % 256);
		flow(30, 0, 1 + rnd() % 64);
		flow(5, 5, 1 + rnd() % 64);
	}
	for (i = 2; i <= 16; i *= 2) {
		busy(8, i);
		busy(8 + rnd() % (OL_MERGE_DEPTH / 2 - 7), i);
	}
	overload(8, 0, &cuts);
	overload(OL_MERGE_DEPTH / 2, 0, &cuts);
	for (i = 0; i < 20; i++) {
		overload(8 + rnd() % (OL_MERGE_DEPTH / 2 - 7), 0, &cuts);
		overload(8 + rnd() % (OL_MERGE_DEPTH / 2 - 7), 1, &cuts);
		overload(8 + rnd() % (OL_MERGE_DEPTH / 2 - 7), i % 2, &nothing);
	}
	return 0;
}
