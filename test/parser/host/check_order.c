// SPDX-License-Identifier: Apache-2.0
/*
 * Properties of bpf/order.h, each half against a full history that forgets
 * nothing. All counts are 32 bit and begin just below their wrap.
 *
 * Arguments: seed, rounds. Exit status 1: a property is broken.
 */
#include "check.h"
#include "order.h"

#define HISTORY 4096

struct noted {
	__u64 time;
	__u32 seq, nic_seq;
};

/* When was poll `seq` first known to be handed on, by everything ever noted? */
static __u64 truth(const struct noted *h, int nr, __u32 seq, int nic)
{
	int i;

	for (i = 0; i < nr; i++)
		if ((__s32)((nic ? h[i].nic_seq : h[i].seq) - seq) > 0)
			return h[i].time;
	return 0;
}

/*
 * The ring of marks never claims that a packet was handed on earlier than it
 * was; it knows all of what it was told about lately, and that closely.
 */
static void check_marks(void)
{
	static struct noted h[HISTORY];
	struct ol_marks m = {0};
	__u64 now = 1000000, spread = 1 + below(3) * below(300000), got, want;
	__u32 seq = 0u - (__u32)below(3000), nic = seq;
	int nr, i;

	for (nr = 0; nr < HISTORY; nr++) {
		seq += 1 + (one_in(4) ? below(100) : 0);
		nic = one_in(3) ? nic : seq;
		now += 100 + below(spread) + (one_in(50) ? below(5000000) : 0);
		h[nr] = (struct noted){.time = now, .seq = seq, .nic_seq = nic};
		ol_mark_add(&m, seq, nic, now);

		for (i = 0; i < 4; i++) {
			__u32 s = seq - (i ? below(i * 200) : 0);
			int past_nic = i & 1;

			got = past_nic ? ol_handed_on_nic(&m, s, now) : ol_handed_on(&m, s, now);
			want = truth(h, nr + 1, s, past_nic);
			MUST(!got || (want && got >= want), "poll %u: handed on by %llu, not %llu",
			     s, want, got);
			if (want && now - want < 3 * OL_MARK_SPACING_NS)
				MUST(got && got - want <= OL_MARK_SPACING_NS,
				     "poll %u: handed on by %llu, known as %llu at %llu", s, want,
				     got, now);
		}
	}
}

/*
 * A queue that is filled and emptied at random, also to the brim and by jumps:
 * what was in it before `safe` has left it. Once it stands still and is looked
 * at, all of it is known to have left.
 */
static void check_progress(void)
{
	static __u64 entered[1 << 16]; /* by position */
	struct ol_progress p = {0};
	__u64 now = 1000000, in = 0, out = 0, checked = 0;
	__u32 base = 0u - (__u32)below(20000);
	int i;

	for (i = 0; i < 20000 && in < (1 << 16) - 100; i++) {
		__u64 n = below(one_in(10) ? 100 : 8);

		now += 1 + below(20000);
		while (n-- && in - out < 1000) {
			now += below(50);
			entered[in++] = now;
		}
		if (one_in(3))
			out += below(in - out + 1);
		if (one_in(2)) {
			__u64 t = now;

			/* More may arrive after the clock was read and before the tail is. */
			now += below(3000);
			while (one_in(2) && in < (1 << 16) - 100)
				entered[in++] = now;
			ol_progress_step(&p, base + (__u32)out, base + (__u32)in, t);
		}
		while (checked < in && entered[checked] < p.safe) {
			MUST(checked < out,
			     "position %llu of %llu is said to have left, head is at %llu", checked,
			     in, out);
			checked++;
		}
	}
	now += 10 * OL_CLOCK_SLACK_NS;
	out = in;
	for (i = 0; i < 3; i++) {
		now += 10 * OL_CLOCK_SLACK_NS;
		ol_progress_step(&p, base + (__u32)out, base + (__u32)in, now);
	}
	MUST(!in || ol_queue_drained(&p, entered[in - 1], 0),
	     "an emptied queue is not known to be");
	MUST(!ol_queue_drained(&p, now, 0), "what enters just now is said to have left");
}

/* The clocks of two cores may differ by the slack: as much as that proves nothing. */
static void check_slack(void)
{
	struct ol_progress p = {.safe = 1000000};

	MUST(!ol_queue_drained(&p, 1000000, 0), "no slack between two clocks");
	MUST(!ol_queue_drained(&p, 1000000 - OL_CLOCK_SLACK_NS + 1, 0), "too little slack");
	MUST(ol_queue_drained(&p, 1000000 - OL_CLOCK_SLACK_NS, 0), "more slack than needed");
	MUST(ol_queue_drained(&p, 2000000, 1), "an empty queue is not drained");
}

int main(int argc, char **argv)
{
	int rounds = argc > 2 ? atoi(argv[2]) : 100;

	rnd_state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	check_slack();
	while (rounds-- > 0) {
		check_marks();
		check_progress();
	}
	return 0;
}
