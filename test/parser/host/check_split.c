// SPDX-License-Identifier: Apache-2.0
/* Properties of bpf/split.h: which flow is an elephant, and which branch is next. */
#include "check.h"
#include "split.h"

enum { FRAMES = 1000, BYTES = 1000000 };

/* A window of a flow that sends so much in it; returns whether it is an elephant behind. */
static int window(struct ol_elephant *e, __u64 *now, __u32 frames, __u32 bytes, __u32 windows)
{
	e->frames += frames;
	e->bytes += bytes;
	*now += (__u64)windows * OL_SPLIT_WINDOW_NS + rnd() % 1000;
	return ol_elephant(e, *now, FRAMES, BYTES);
}

static void check_grows(void)
{
	int by, i, n;

	for (by = 0; by < 2; by++) {
		struct ol_elephant e = {};
		__u64 now = rnd() >> 1;

		e.window = now;
		for (i = 1; i <= OL_SPLIT_HEAVY; i++) {
			MUST(!e.elephant, "an elephant after %d windows, not %d", i - 1,
			     OL_SPLIT_HEAVY);
			window(&e, &now, by ? 1 : FRAMES + 1, by ? BYTES + 1 : 1, 1);
		}
		MUST(e.elephant, "by %s, none after %d windows", by ? "bytes" : "frames",
		     OL_SPLIT_HEAVY);
		/* Between the thresholds it remains what it is. */
		for (i = 0; i < 1000; i++)
			MUST(window(&e, &now, by ? 1 : FRAMES * 3 / 4, by ? BYTES * 3 / 4 : 1, 1),
			     "none after %d windows above half of the limit", i);
		for (n = 1; window(&e, &now, 1, 1, 1); n++)
			MUST(n <= OL_SPLIT_LIGHT, "still one after %d windows with little", n);
		MUST(n == OL_SPLIT_LIGHT, "none after %d windows with little, not %d", n,
		     OL_SPLIT_LIGHT);
		for (i = 0; i < 1000; i++)
			MUST(!window(&e, &now, by ? 1 : FRAMES, by ? BYTES : 1, 1),
			     "one again by %d windows at the limit", i);
	}
}

/* Not within a window, and a pause counts as the time that it is. */
static void check_pauses(void)
{
	struct ol_elephant e = {};
	__u64 now = 1000000000;
	int i;

	e.window = now;
	for (i = 0; i < 1000; i++) {
		e.frames += 10 * FRAMES;
		now += OL_SPLIT_WINDOW_NS / 2000;
		MUST(!ol_elephant(&e, now, FRAMES, BYTES), "judged before the window was over");
	}
	e = (struct ol_elephant){.window = now};
	for (i = 0; i < 1000; i++)
		MUST(!window(&e, &now, 5 * FRAMES, 1, 6), "bursts that are little over time");
	for (i = 0; i < OL_SPLIT_HEAVY; i++)
		window(&e, &now, FRAMES + 1, 1, 1);
	MUST(e.elephant, "no elephant to begin with");
	MUST(!window(&e, &now, FRAMES, 1, 100000), "one still after a long pause");
}

static void check_branches(void)
{
	__u32 used[OL_BRANCHES], nr, i, j, least, got, batch;
	int here;

	for (i = 0; i < 100000; i++) {
		struct ol_branch best = {.lane = OL_BRANCHES};

		nr = rnd() % (OL_BRANCHES + 1);
		here = rnd() & 1;
		batch = rnd() % 512;
		for (j = 0, least = ~0U; j < nr; j++) {
			used[j] = rnd() % 3 ? rnd() % 2048 : 0;
			least = used[j] < least ? used[j] : least;
			ol_better_branch(&best, j, used[j]);
		}
		got = ol_next_branch(&best, here, batch);
		if (!nr || (here && 4 * least > 3 * batch))
			MUST(got == OL_BRANCH_HERE, "branch %u of %u, here %d, least %u of %u", got,
			     nr, here, least, batch);
		else
			MUST(got < nr && used[got] == least,
			     "branch %u of %u, which holds %u of %u", got, nr,
			     got < nr ? used[got] : 0, least);
	}
}

static void check_places(void)
{
	struct ol_elephant e = {};

	MUST(ol_elephant_gone(&e, 0), "a place that no flow took is taken");
	e.taken = 1;
	e.window = 5000000000;
	MUST(!ol_elephant_gone(&e, e.window + OL_WHOLE_GONE_NS), "gone too soon");
	MUST(!ol_elephant_gone(&e, e.window - 1000), "gone by a clock that steps back");
	MUST(ol_elephant_gone(&e, e.window + OL_WHOLE_GONE_NS + 1), "never gone");
	e.state = OL_SPLIT;
	MUST(!ol_elephant_gone(&e, e.window + OL_SPLIT_GONE_NS), "split, and gone too soon");
	MUST(ol_elephant_gone(&e, e.window + OL_SPLIT_GONE_NS + 1), "split, and never gone");
}

int main(void)
{
	check_grows();
	check_pauses();
	check_branches();
	check_places();
	return 0;
}
