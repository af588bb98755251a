// SPDX-License-Identifier: Apache-2.0
/* Priority's policy, with a clock of its own: what flows become, what latency may take. */
#include <stdio.h>
#include <string.h>
#include "check.h"
#include "priority.h"

enum { FRAMES = 200, BYTES = 65536 };

/* A flow that sends so much in each of some windows, a poll each; returns its class after. */
static __u32 windows(struct ol_sparse *s, __u32 *now, int n, __u32 frames, __u32 bytes)
{
	__u32 class = s->class;

	while (n--) {
		class = ol_sparse_class(s, *now, FRAMES, BYTES);
		s->frames += frames;
		s->bytes += bytes;
		*now += OL_SPARSE_WINDOW_US;
	}
	return class;
}

/* Windows until a flow that sends so much is latency, or 0 if it is not within 100. */
static int becomes(struct ol_sparse *s, __u32 *now, __u32 frames, __u32 bytes)
{
	int n;

	for (n = 1; n <= 100; n++)
		if (windows(s, now, 1, frames, bytes) == OL_CLASS_LATENCY)
			return n;
	return 0;
}

static void sparse(__u32 start)
{
	struct ol_sparse s = {.window = start};
	__u32 now = start, class;

	MUST(becomes(&s, &now, 10, 1000) == OL_SPARSE_PROBATION + 1, "line %d", __LINE__);
	/* A rate between the two limits changes nothing in either class. */
	class = windows(&s, &now, 50, FRAMES * 3 / 4, 1000);
	MUST(class == OL_CLASS_LATENCY, "line %d", __LINE__);

	/* Heavy by frames within one window, at the next poll already. */
	s.frames = FRAMES + 1;
	MUST(ol_sparse_class(&s, now, FRAMES, BYTES) == OL_CLASS_BULK, "line %d", __LINE__);
	class = windows(&s, &now, 50, FRAMES * 3 / 4, 1000);
	MUST(class == OL_CLASS_BULK, "line %d", __LINE__);
	/* And it takes long to be believed again. */
	MUST(becomes(&s, &now, 10, 1000) >= OL_SPARSE_RELAPSE, "line %d", __LINE__);

	/* Heavy by bytes. */
	s.bytes = BYTES + 1;
	MUST(ol_sparse_class(&s, now, FRAMES, BYTES) == OL_CLASS_BULK, "line %d", __LINE__);

	/* A flow that is heavy from its first window on never is latency. */
	memset(&s, 0, sizeof(s));
	s.window = now;
	MUST(!becomes(&s, &now, FRAMES + 1, 1000), "line %d", __LINE__);
	MUST(!becomes(&s, &now, 10, BYTES + 1), "line %d", __LINE__);

	/* Nor one that is silent between bursts. */
	memset(&s, 0, sizeof(s));
	s.window = now;
	for (int i = 0; i < 100; i++) {
		class = windows(&s, &now, 1, FRAMES + 1, 1000);
		MUST(class == OL_CLASS_BULK, "line %d", __LINE__);
		now += OL_SPARSE_WINDOW_US;
	}

	/* A packet each second is sparse. */
	memset(&s, 0, sizeof(s));
	s.window = now;
	windows(&s, &now, 1, 1, 100);
	now += 10 * OL_SPARSE_WINDOW_US;
	MUST(windows(&s, &now, 1, 1, 100) == OL_CLASS_LATENCY, "line %d", __LINE__);
}

/*
 * So many flows of one source, each of them small and sparse, send so much in each window. Returns how
 * many thousandths of their frames were latency.
 */
static int spread(__u32 now, int flows, __u32 frames, __u32 bytes)
{
	static struct ol_sparse s[300];
	struct ol_sparse source = {.window = now};
	long all = 0, latency = 0;

	memset(s, 0, sizeof(s));
	for (int i = 0; i < flows; i++)
		s[i].window = now;
	for (int w = 0; w < 100; w++, now += OL_SPARSE_WINDOW_US) {
		/* Ten polls a window. */
		for (__u32 poll = 0; poll < 10; poll++)
			for (int i = 0; i < flows; i++) {
				__u32 when = now + poll * (OL_SPARSE_WINDOW_US / 10);
				__u32 class =
					ol_sparse_bounded(&s[i], &source, when, FRAMES, BYTES);

				ol_sparse_add(&s[i], &source, frames / 10, bytes / 10);
				all += frames / 10;
				latency += class == OL_CLASS_LATENCY ? frames / 10 : 0;
			}
	}
	return latency * 1000 / all;
}

static void sources(__u32 start)
{
	const struct ol_flow v4 = {.addr = {0x0a010203aabbccddULL},
				   .tail = 7ULL << 32 | 17 << 24 | 42};
	const struct ol_flow v6 = {
		.addr = {1, 2, 3, 4}, .tail = 7ULL << 32 | 6 << 24 | 42, .v6 = 1};
	struct ol_flow of;

	/* Some flows of a source are latency but for their probation, whatever it sends beside them. */
	MUST(spread(start, 4, 100, 1000) > 950, "line %d", __LINE__);
	/* A flood over many ports is bulk, for as long as it lasts, by frames and by bytes. */
	MUST(spread(start, 300, 10, 1000) < 20, "line %d", __LINE__);
	MUST(spread(start, 300, 10, BYTES / 10) < 20, "line %d", __LINE__);

	ol_source_of(&v4, &of);
	MUST(of.addr[0] == 0x0a01020300000000ULL && of.tail == 42 && !of.v6, "line %d", __LINE__);
	ol_source_of(&v6, &of);
	MUST(of.addr[0] == 1 && of.addr[1] == 2 && !of.addr[2] && !of.addr[3] && of.tail == 42 &&
		     of.v6,
	     "line %d", __LINE__);
}

/* A class that always wants the core gets its share of it, and no more in the long run. */
static void budget(__u32 share)
{
	struct ol_prio p = {.latency = 256};
	long long in = 0, total = 0;
	int turns = 0, was = 0;

	for (int i = 0; i < 1000000; i++) {
		ol_prio_earn(&p, 10000, share);
		if (!p.over) {
			ol_prio_charge(&p, 10000);
			in += 10000;
		}
		turns += p.over != was;
		was = p.over;
		total += 10000;
	}
	MUST(in * 1000 <= total * share + 2 * 1000 * OL_PRIO_BURST_NS, "line %d", __LINE__);
	MUST(in * 1000 >= total * share * 99 / 100 - 2 * 1000 * OL_PRIO_BURST_NS, "line %d",
	     __LINE__);
	/* It does not go to and fro with every poll. */
	MUST(turns < 4000, "line %d", __LINE__);
}

static void bounds(void)
{
	struct ol_prio p = {.latency = 256};

	ol_prio_earn(&p, ~0ULL, 1000);
	MUST(p.budget == OL_PRIO_BURST_NS, "line %d", __LINE__);
	for (int i = 0; i < 100; i++)
		ol_prio_charge(&p, ~0ULL);
	MUST(p.budget == -OL_PRIO_BURST_NS, "line %d", __LINE__);
	/* A class that was far behind has its share again within a second. */
	ol_prio_earn(&p, 1000000000, 500);
	MUST(!p.over, "line %d", __LINE__);
	/* A poll with one latency frame of 256 is charged that part of it. */
	p.budget = 0;
	p.latency = 1;
	ol_prio_charge(&p, 256000);
	MUST(p.budget == -1000, "line %d", __LINE__);
}

/*
 * Polls for so many ms, in each of which so many of ten frames find no room; every so many the
 * lane is seen to be empty. Returns in how many of them it was to be emptied.
 */
static int polls(struct ol_prio *p, int ms, int refused, int empty)
{
	int drains = 0, i;

	for (i = 1; i <= ms; i++) {
		__u32 joins = p->joins, number = p->number;
		int is = empty && i % empty == 0, drain;

		p->now += 1000;
		drain = ol_prio_join(p, is);
		drains += drain;
		MUST(!drain || (!is && p->join && !p->joins), "emptied for nothing");
		MUST(p->joins == joins || is, "changes while it holds frames");
		MUST(p->joins == joins || p->number != number, "joins what came before");
		p->frames[OL_CLASS_BULK][OL_VERDICT_REFUSED] += refused;
		p->frames[OL_CLASS_BULK][OL_VERDICT_BULK_LANE] += 10 - refused;
	}
	return drains;
}

static void joins(__u32 start)
{
	struct ol_prio p = {.now = start, .looked = start};
	__u32 a, b;

	MUST(!polls(&p, 1000, 0, 10) && !p.joins, "line %d", __LINE__);
	a = ol_prio_number(&p);
	b = ol_prio_number(&p);
	MUST(a != b && !(a & 0xff) && !(b & 0xff), "line %d", __LINE__);
	/* A few that are refused are no overload. */
	MUST(!polls(&p, 1000, 2, 10) && !p.joins, "line %d", __LINE__);
	/* In overload the lane is emptied, once. */
	MUST(polls(&p, 1000, 5, 0) > 700 && !p.joins, "line %d", __LINE__);
	MUST(!polls(&p, 1, 5, 1) && p.joins, "line %d", __LINE__);
	MUST(!polls(&p, 1000, 5, 0) && p.joins, "line %d", __LINE__);
	MUST(ol_prio_number(&p) == ol_prio_number(&p), "line %d", __LINE__);
	/* Then it joins for as long as anything is refused, and ten seconds more. */
	MUST(!polls(&p, 60000, 1, 10) && p.joins, "line %d", __LINE__);
	MUST(!polls(&p, 9000, 0, 10) && p.joins, "line %d", __LINE__);
	MUST(!polls(&p, 2000, 0, 0) && p.joins, "line %d", __LINE__);
	MUST(!polls(&p, 10, 0, 10) && !p.joins, "line %d", __LINE__);
}

/*
 * Polls without latency's frames, before each of which the lane's thread took so many of bulk's, and
 * the lane, never empty, had so much room. Returns before which of them it was first to be emptied,
 * or 0.
 */
static int emptied(struct ol_prio *p, const struct ol_policy *policy, int n, __u32 takes,
		   __u32 room)
{
	struct ol_lane_watch *bulk = &p->lane[OL_CLASS_BULK];

	for (int i = 1; i <= n; i++) {
		p->now += 1000;
		bulk->room = room;
		bulk->taken += takes;
		ol_prio_turn(p, policy, 0, 0);
		MUST(!p->about && p->demoted, "line %d", __LINE__);
		if (!bulk->room)
			return i;
	}
	return 0;
}

/* Bulk makes way as long as latency is about; then its lane is emptied if its thread is too slow. */
static void turns(__u32 start, __u32 taken)
{
	struct ol_policy policy = {.latency_window_us = 50000, .bulk_room = 2000, .rules_table = 1};
	struct ol_prio p = {.now = start, .reserve = 1000};
	struct ol_lane_watch *bulk = &p.lane[OL_CLASS_BULK];

	bulk->taken = taken;
	bulk->room = 7;
	ol_prio_turn(&p, &policy, 1, 0);
	MUST(!p.about && !p.demoted && bulk->room == 7, "line %d", __LINE__);
	p.ever = 1;
	for (int i = 0; i < 10; i++) {
		p.now += 49000;
		p.seen = p.now;
		p.now += 49000;
		bulk->taken += 10000;
		ol_prio_turn(&p, &policy, 0, 0);
		MUST(p.about && p.demoted && bulk->room == 7 && p.table == 1, "line %d", __LINE__);
	}
	/* A thread that waits for its core has time. */
	p.now += 1000;
	MUST(!emptied(&p, &policy, 5000, 0, 7), "line %d", __LINE__);
	/* Flows that wait for answers never leave it empty, and are not refused. */
	MUST(!emptied(&p, &policy, 5000, 8, 1000), "line %d", __LINE__);
	MUST(!emptied(&p, &policy, 249, 8, 999), "line %d", __LINE__);
	MUST(!emptied(&p, &policy, 1, 8, 1000), "line %d", __LINE__);
	MUST(emptied(&p, &policy, 5000, 8, 999) == 250, "line %d", __LINE__);
	/* Until it is empty. */
	MUST(emptied(&p, &policy, 1, 8, 999) == 1, "line %d", __LINE__);
	MUST(emptied(&p, &policy, 1, 8, 1990) == 1, "line %d", __LINE__);
	bulk->room = 2000;
	ol_prio_turn(&p, &policy, 1, 0);
	MUST(!p.demoted && bulk->room == 2000, "line %d", __LINE__);
	/* Once more, with a lane that runs empty by itself. */
	p.seen = p.now;
	ol_prio_turn(&p, &policy, 0, 1);
	MUST(p.about && !p.demoted, "line %d", __LINE__);
	ol_prio_turn(&p, &policy, 0, 0);
	MUST(p.demoted, "line %d", __LINE__);
	p.now += 50000;
	MUST(!emptied(&p, &policy, 199, 10, 7), "line %d", __LINE__);
	bulk->room = 7;
	ol_prio_turn(&p, &policy, 1, 0);
	MUST(!p.demoted && bulk->room == 7, "line %d", __LINE__);
	/* Latency comes while it is emptied: bulk makes way again. */
	p.seen = p.now;
	ol_prio_turn(&p, &policy, 0, 0);
	p.now += 50000;
	MUST(emptied(&p, &policy, 5000, 8, 7) == 250, "line %d", __LINE__);
	p.seen = p.now;
	bulk->room = 7;
	ol_prio_turn(&p, &policy, 0, 0);
	MUST(p.about && bulk->room == 7, "line %d", __LINE__);
	p.now += 50000;
	MUST(!emptied(&p, &policy, 249, 8, 7), "line %d", __LINE__);
	/* The daemon wants bulk back: flows that wait for answers are refused, too, until it is empty. */
	p.seen = p.now;
	bulk->room = 7;
	ol_prio_turn(&p, &policy, 0, 0);
	policy.latency_window_us = 0;
	MUST(emptied(&p, &policy, 5000, 8, 1990) == 250, "line %d", __LINE__);
	MUST(emptied(&p, &policy, 1, 8, 1990) == 1, "line %d", __LINE__);
}

/*
 * A lane's thread: it takes a batch, and handles it unless a poll comes in between. Its GRO joins some frames with what
 * it holds, and keeps the others in a list until there are eight, 64 frames have come or the ring is empty.
 */
enum { RING = 128, LISTED = 8, FLUSH = 64, BATCH = 8, STEPS = 200000 };

struct thread {
	struct {
		__u32 sent;
		int joined;
	} frame[STEPS * 2];
	unsigned int put, took, handled; /* frames, in this order */
	unsigned int oldest;		 /* not joined, and not handed on */
	unsigned int listed, packets;
	int asleep;
};

static void thread_hands_on(struct thread *t)
{
	t->oldest = t->handled;
	t->listed = 0;
}

static void thread_goes_on(struct thread *t)
{
	unsigned int n = t->took - t->handled;

	t->asleep = 0;
	if (!n) {
		n = t->put - t->took;
		t->asleep = !n;
		t->took += n < BATCH ? n : BATCH;
		return;
	}
	t->packets += n;
	while (t->handled < t->took)
		if (!t->frame[t->handled++].joined && ++t->listed == LISTED)
			thread_hands_on(t);
	if (t->packets >= FLUSH || t->put == t->took) {
		thread_hands_on(t);
		t->packets = 0;
	}
}

/* What a lane is said to have handed on it has, but for what its GRO joined. */
static void handed_on(__u32 now)
{
	static struct thread t;
	struct ol_lane_watch w = {.safe = now, .empty = now};
	__u32 last = now, safe;
	int load = 0, joins = 0, told = 0, i;
	unsigned int n;

	memset(&t, 0, sizeof(t));
	for (i = 0; i < STEPS; i++) {
		struct ol_lane_look look = {.size = RING};

		if (i % 1000 == 0) {
			load = below(18);
			joins = one_in(2);
		}
		if (!one_in(3)) {
			thread_goes_on(&t);
			continue;
		}
		now += 1 + below(20);
		look.used = t.put - t.took;
		look.consumer = t.took % RING;
		look.asleep = t.asleep;
		safe = w.safe;
		told += !ol_lane_step(&w, &look, last) && w.safe != safe;
		while (t.oldest < t.put && t.frame[t.oldest].joined)
			t.oldest++;
		MUST(t.oldest == t.put || !ol_not_after(t.frame[t.oldest].sent, w.safe),
		     "step %d: of what was sent by %u, frame %u of %u is not handed on", i, w.safe,
		     t.oldest, t.frame[t.oldest].sent);
		for (n = load ? below(load) : 0; n && t.put - t.took < RING; n--) {
			t.frame[t.put].sent = now;
			t.frame[t.put++].joined = joins && !one_in(20);
		}
		last = now;
	}
	MUST(told > 100, "a lane that is never empty told %d times how far it is", told);
}

int main(void)
{
	joins(0);
	joins(~0U - 3000000); /* the clock wraps */
	sparse(0);
	sparse(12345);
	sparse(~0U - 5 * OL_SPARSE_WINDOW_US); /* the clock wraps */
	sources(0);
	sources(~0U - 5 * OL_SPARSE_WINDOW_US); /* the clock wraps */
	for (__u32 share = 50; share <= 1000; share += 50)
		budget(share);
	bounds();
	handed_on(1);
	handed_on(~0U - 100000); /* the clock wraps */
	turns(1, 0);
	turns(~0U - 100000, ~0U - 100000); /* the clock wraps, and what was taken */
	return 0;
}
