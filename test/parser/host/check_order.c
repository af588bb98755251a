// SPDX-License-Identifier: Apache-2.0
/*
 * Properties of bpf/order.h, each half against a full history that forgets
 * nothing, and a pod's ring against a model of it. All counts are 32 bit and begin just below their wrap.
 *
 * Arguments: seed, rounds. Exit status 1: a property is broken.
 */
#include <string.h>
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

#define VETH_RING 256 /* VETH_RING_SIZE */
#define PORT_HISTORY (1 << 16)
#define PORT_ENOUGH (PORT_HISTORY - 32 * VETH_RING) /* the rest is for the end of a round */
#define PORT_BUDGET 64
#define PORT_BATCH 16

/*
 * A pod's end of a veth (drivers/net/veth.c, veth_poll): a ring of VETH_RING frames, polls
 * that take up to a budget and go on as long as they take all of that, and a GRO engine.
 */
static struct {
	__u64 entered[PORT_HISTORY]; /* when a frame was put into the ring, by its number */
	__u8 gone[PORT_HISTORY];     /* it has been handed on */
	__u32 batch[PORT_BATCH], in_batch, batch_max; /* net.core.gro_normal_batch */
	__u32 held[PORT_BUDGET * 8], nr_held;	      /* for merging */
	__u32 in, out, checked;
	__u64 now;
	__u32 brim;    /* one chance in so many to fill the ring up */
	__u32 merging; /* one frame in so many is held; 0: none */
	int timeout;   /* gro_flush_timeout: what is held may stay so behind a poll that ends */
} port;

/* Others put frames into the ring at any time; beyond what it holds they are lost. */
static void port_fill(__u32 most)
{
	__u32 n = one_in(port.brim) ? VETH_RING : below(most + 1);

	while (n-- && port.in - port.out < VETH_RING && port.in < PORT_HISTORY) {
		port.now += 1 + below(50);
		port.entered[port.in++] = port.now;
	}
	port.now += 1 + below(200);
}

/* gro_normal_list() */
static void port_pass_up(void)
{
	while (port.in_batch)
		port.gone[port.batch[--port.in_batch]] = 1;
}

static void port_normal(__u32 frame)
{
	port.batch[port.in_batch++] = frame;
	if (port.in_batch == port.batch_max)
		port_pass_up();
}

static void port_flush(int all)
{
	__u32 keep = 0, i;

	for (i = 0; i < port.nr_held; i++) {
		if (all || one_in(2))
			port_normal(port.held[i]);
		else
			port.held[keep++] = port.held[i];
	}
	port.nr_held = keep;
}

/* A poll and what follows; whether the next one follows at once. */
static int port_poll(struct ol_port *p)
{
	__u64 before, safe = p->safe;
	__u32 work = 0;
	int full;

	/* The end of another poll of this core, of whatever it was. */
	before = port.now - below(one_in(4) ? 100000 : 100);
	port.now += 1 + below(100);
	while (work < PORT_BUDGET && port.out < port.in) {
		if (port.merging && one_in(port.merging) &&
		    port.nr_held < sizeof(port.held) / sizeof(port.held[0]))
			port.held[port.nr_held++] = port.out;
		else
			port_normal(port.out);
		port.out++;
		work++;
		if (one_in(4))
			port_fill(2);
	}
	full = work == PORT_BUDGET;
	/* napi_complete_done() */
	if (!full) {
		if (!port.timeout)
			port_flush(1);
		port_pass_up();
	}
	port_fill(4);
	{
		__u64 now = port.now;

		if (one_in(4))
			port_fill(4);
		ol_port_step(p, work, full, port.nr_held != 0, before, now);
	}
	if (p->safe > safe) {
		for (; port.checked < port.in && port.entered[port.checked] <= p->safe;
		     port.checked++)
			MUST(port.gone[port.checked],
			     "frame %u came at %llu, is said to be handed on by %llu; %u of %u are "
			     "taken",
			     port.checked, port.entered[port.checked], p->safe, port.out, port.in);
	}
	/* __napi_poll(): behind the tracepoint. */
	if (full) {
		port_flush(0);
		port_pass_up();
	}
	return full;
}

/*
 * What was in a pod's ring at the time that is told as safe has been handed on, whatever comes
 * meanwhile and whatever GRO holds. And that time goes on: as long as frames come without a
 * pause, within the polls that take a ring; else with the next one.
 */
static void check_port(void)
{
	struct ol_port p = {0};
	__u64 since;
	int i, n;

	memset(&port, 0, sizeof(port));
	port.now = 1000000;
	port.brim = one_in(2) ? 1 + below(4) : 20;
	port.merging = one_in(2) ? 0 : 1 + below(200);
	port.timeout = one_in(4);
	port.batch_max = one_in(2) ? 8 : 1 + below(PORT_BATCH);
	while (port.in < PORT_ENOUGH) {
		port_fill(one_in(4) ? 200 : 8);
		while (port_poll(&p) && port.in < PORT_ENOUGH)
			if (one_in(2))
				port_fill(100);
		port.now += one_in(8) ? below(1000000) : below(1000);
	}
	/* It gets quiet, and GRO lets go. */
	port.brim = ~0U;
	port.merging = port.timeout = 0;
	while (port_poll(&p))
		;
	since = port.now;
	port_fill(8);
	port.now += 200000;
	port_poll(&p);
	MUST(p.safe > since, "a ring that was found empty is not told to be");
	port.brim = 1;
	for (i = 0; i < 2; i++) {
		since = port.now;
		for (n = 0; p.safe <= since && n < 2 * VETH_RING / PORT_BUDGET + 3; n++) {
			port_fill(VETH_RING);
			MUST(port_poll(&p), "a full ring was emptied by one poll");
		}
		MUST(p.safe > since, "of a ring that is never empty nothing is told in %d polls",
		     n);
	}
}

int main(int argc, char **argv)
{
	int rounds = argc > 2 ? atoi(argv[2]) : 100;

	rnd_state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	check_slack();
	while (rounds-- > 0) {
		check_marks();
		check_progress();
		check_port();
	}
	return 0;
}
