// SPDX-License-Identifier: Apache-2.0
/*
 * A lane's ring as the guard reads it, at each step of the thread that takes frames and of a core that puts
 * them: it never looks empty while a frame is in it, and does once none is.
 *
 * Arguments: seed, rounds. Exit status 1: a property is broken.
 */
#include "check.h"
#include "ring.h"

enum { MOST = 2048, STEPS = 20000 };

static struct ol_cpu the_cpu;
static void *in_place[MOST];
static struct ptr_ring ring;
static struct task_struct thread;
static struct bpf_cpu_map_entry entry = {.queue = &ring, .kthread = &thread};
static int inside; /* frames that were put and are not being taken */
static int quiet;  /* no more come */

void model_step(void)
{
}

void *model_lookup(const void *map, const void *key)
{
	(void)key;
	return map == &ol_cpus ? &the_cpu : NULL;
}

static void look(void)
{
	struct ol_ring r;
	__u32 left;

	MUST(ol_get_ring(0, OL_CLASS_BULK, &r), "there is no ring");
	left = ol_ring_from(&r, r.consumer);
	MUST(left || !inside,
	     "a ring of %d with %d frames looks empty: producer %d, head %d, tail %d", ring.size,
	     inside, ring.producer, ring.consumer_head, ring.consumer_tail);
}

/* __ptr_ring_produce() */
static int put(void)
{
	static int frame;

	if (in_place[ring.producer])
		return 0;
	in_place[ring.producer] = &frame;
	inside++;
	ring.producer = (ring.producer + 1) % ring.size;
	look();
	return 1;
}

/* Frames that come while the thread is held up. */
static void put_some(void)
{
	int n = one_in(8) ? (int)below(MOST) : (int)below(20);

	look();
	while (!quiet && n-- && put())
		;
}

/* __ptr_ring_consume() */
static void take(void)
{
	int head = ring.consumer_head, next = head + 1;

	if (!in_place[head] || !inside)
		return;
	inside--;
	if (next - ring.consumer_tail >= ring.batch || next >= ring.size) {
		while (head >= ring.consumer_tail)
			in_place[head--] = NULL;
		ring.consumer_tail = next;
		put_some();
	}
	if (next >= ring.size) {
		next = ring.consumer_tail = 0;
		put_some();
	}
	ring.consumer_head = next;
	look();
}

static void check_ring(int size)
{
	struct ol_ring r;
	int i;

	__builtin_memset(in_place, 0, sizeof(in_place));
	inside = quiet = 0;
	ring = (struct ptr_ring){.size = size, .batch = size < 32 ? 1 : 16, .queue = in_place};
	the_cpu.lane[OL_CLASS_BULK] = (__u64)&entry;
	for (i = 0; i < STEPS; i++) {
		if (one_in(20))
			put_some();
		else
			take();
	}
	for (quiet = 1; inside;)
		take();
	MUST(ol_get_ring(0, OL_CLASS_BULK, &r) && !ol_ring_from(&r, r.consumer),
	     "an empty ring of %d does not look so", size);
}

int main(int argc, char **argv)
{
	int rounds = argc > 2 ? atoi(argv[2]) : 100;

	rnd_state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	while (rounds-- > 0)
		check_ring(one_in(2) ? 2000 : 8 + (int)below(100));
	return 0;
}
