// SPDX-License-Identifier: Apache-2.0
/*
 * bpf/resequence.h against a list of all notes: what was noted is found as long as it is
 * under way, each note goes later than the one before, and no more are under way at a time
 * than are kept. Numbers and, now and then, what is sent again wrap around.
 */
#include <string.h>
#include "check.h"
#include "resequence.h"

enum { MANY = 3000 };

static struct ol_notes notes;
static struct ol_note all[MANY];
static __u32 nr;

static __u64 naive(__u32 seq)
{
	__u32 i = nr;

	while (i-- > 0)
		if (!ol_after(all[i].seq, seq))
			return all[i].release;
	return 0;
}

/* delay: of each micro-flow; every: ns between two. */
static void flow(__u32 delay, __u32 every)
{
	__u32 first = rnd(), seq = first, i, oldest;
	__u64 now = 1 + rnd() % 1000000, release, got;
	int full = 0;

	nr = 0;
	memset(&notes, rnd() % 256, sizeof(notes));
	ol_notes_begin(&notes, first);
	MUST(!ol_noted_last(&notes) && !ol_note_find(&notes, first), "something is noted");
	while (nr < MANY) {
		now += 1 + rnd() % (2 * every);
		if (ol_notes_full(&notes, now)) {
			MUST(nr >= OL_NOTES - 2, "no room for note %u", nr);
			MUST(all[nr - (OL_NOTES - 1)].release > now,
			     "no room, and nothing under way");
			full++;
			continue;
		}
		/* Now and then what is sent again begins a micro-flow, or the delay becomes less. */
		if (nr && one_in(10)) {
			MUST(!ol_note_add(&notes, seq - 1 - rnd() % 100000, now + delay),
			     "noted again");
		}
		if (one_in(500))
			delay = delay / 2 + 1;
		seq += nr ? 1 + rnd() % 400000 : 0;
		MUST(ol_note_add(&notes, seq, now + delay), "not noted");
		release = ol_noted_last(&notes);
		MUST(release >= now + delay, "goes early");
		MUST(!nr || release > all[nr - 1].release, "goes with the one before");
		MUST(!nr || release == now + delay || release == all[nr - 1].release + 1,
		     "goes late");
		all[nr].seq = seq;
		all[nr++].release = release;
		oldest = nr >= OL_NOTES ? nr - OL_NOTES + 1 : 0;
		for (i = 0; i < 20; i++) {
			__u32 want = first - 5 + rnd() % (seq - first + 10);

			got = ol_note_find(&notes, want);
			MUST(got == (ol_after(all[oldest].seq, want) ? 0 : naive(want)),
			     "%u of %u notes: %llu, want %llu", want - first, nr, got, naive(want));
			MUST(got || naive(want) <= now, "one that is under way is not found");
		}
	}
	/* With twice as many under way as there is room for, on average, at the very end. */
	MUST(full || (__u64)every * OL_NOTES * 2 > delay, "never full");
}

int main(int argc, char **argv)
{
	int i;

	if (argc > 1)
		rnd_state = strtoull(argv[1], NULL, 10);
	for (i = 0; i < 20; i++) {
		flow(1000000, 100000);
		flow(1000000, 1000);
		flow(1 + rnd() % 100000000, 1 + rnd() % 100000);
	}
	return 0;
}
