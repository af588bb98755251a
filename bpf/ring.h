/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The rings of lanes that are threads, as the kernel has them. Positions that are
 * counted from tracepoints go wrong: while another program attaches to or leaves
 * the same tracepoint, some events reach no program (seen on 6.18).
 */
#ifndef OVERLANE_RING_H
#define OVERLANE_RING_H

#include "kernel.h"
#include "maps.h"

struct ol_ring {
	__u32 size;
	__u32 producer; /* where the next frame is put */
	__u32 consumer; /* where the next frame is taken */
	int full;	/* producer and consumer meet, with frames all the way round */
	__u64 thread;	/* its task_struct */
	int asleep;	/* the thread has handled all that it took, and found nothing more */
};

/* Returns 0 if the core has no lane for the class. */
static __always_inline int ol_get_ring(__u32 cpu, __u32 class, struct ol_ring *r)
{
	struct ol_cpu *c = ol_get_cpu(cpu);
	struct bpf_cpu_map_entry *entry;
	struct ptr_ring *ring;
	void **queue, *at = NULL;
	__u32 given_back;

	if (!c || class >= OL_NR_CLASSES || !c->lane[class])
		return 0;
	entry = (void *)c->lane[class];
	ring = BPF_CORE_READ(entry, queue);
	/* The state before the ring: a thread sets it, then looks into the ring once more. */
	r->asleep = BPF_CORE_READ(entry, kthread, __state) & OL_TASK_INTERRUPTIBLE;
	r->thread = (__u64)BPF_CORE_READ(entry, kthread);
	r->size = BPF_CORE_READ(ring, size);
	r->producer = BPF_CORE_READ(ring, producer);
	queue = BPF_CORE_READ(ring, queue);
	if (r->producer >= r->size)
		return 0;
	bpf_probe_read_kernel(&at, sizeof(at), queue + r->producer);
	r->consumer = BPF_CORE_READ(ring, consumer_head);
	/*
	 * Places are given back in batches before the head moves on (__ptr_ring_discard_one): until it
	 * does, so many frames may have come that the producer stands at the old head.
	 */
	given_back = BPF_CORE_READ(ring, consumer_tail);
	r->full = at || r->consumer - given_back >= (__u32)BPF_CORE_READ(ring, batch);
	return 1;
}

/*
 * Entries that were taken are cleared in batches of two cache lines, and until then in the
 * way of new ones (include/linux/ptr_ring.h, __ptr_ring_discard_one): a ring holds fewer
 * than its size by up to so many.
 */
#define OL_RING_STALE 32

/* Frames between a place in the ring and where the next one is put. */
static __always_inline __u32 ol_ring_from(const struct ol_ring *r, __u32 place)
{
	if (place == r->producer)
		return r->full || r->consumer != place ? r->size : 0;
	return r->producer > place ? r->producer - place : r->producer + r->size - place;
}

#endif
