/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The order guard: when may a flow slot go on on another lane?
 *
 * When everything that it sent before has left the old one. That is proved by
 * position, in two halves that a time joins:
 *
 *   source  A core notes a mark {poll, time} when what its hook has decided is
 *           in the queues it was meant for: the slot's last packet was handed
 *           on no later than the first mark whose poll is above the slot's.
 *   queue   A queue's core reads its tail at a time T; when the head has come
 *           that far, whatever was in the queue before T has been handled:
 *           safe = T.
 *
 * Drained: there is a mark for the slot's last packet and its time is not after
 * the queue's safe time. Drops, aggregation and idle lanes cannot block this:
 * marks and heads advance without the packet. No maps, no helpers here.
 */
#ifndef OVERLANE_ORDER_H
#define OVERLANE_ORDER_H

#include "abi.h"
#include "parse.h"

/*
 * The clock that BPF reads may step back by some nanoseconds between cores
 * while it is being updated (kernel/time/timekeeping.c, __ktime_get_fast_ns).
 */
#define OL_CLOCK_SLACK_NS 2000

/*
 * What one core writes and others read: in the order in which it stands here. The
 * machines that this runs on (x86) keep the order of stores, and that of loads.
 */
#define OL_WRITE(x, v) (*(volatile __typeof__(x) *)&(x) = (v))
#define OL_READ(x) (*(const volatile __typeof__(x) *)&(x))

OL_INLINE int ol_after(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

/*
 * Notes that all which passed before poll `seq` was handed on by `time`. Marks
 * closer than OL_MARK_SPACING_NS share an entry, so that the ring spans longer
 * than a queue holds a packet.
 */
OL_INLINE void ol_mark_add(struct ol_marks *m, __u32 seq, __u32 nic_seq, __u64 time)
{
	__u32 at = m->at % OL_MARKS, before = (at + OL_MARKS - 1) % OL_MARKS;

	if (time - m->mark[before].time >= OL_MARK_SPACING_NS && m->mark[at].time) {
		at = (at + 1) % OL_MARKS;
		m->at = at;
	}
	/* The time first: with the new poll's number, the old time would be too early. */
	OL_WRITE(m->mark[at].time, time);
	OL_WRITE(m->mark[at].seq, seq);
	OL_WRITE(m->mark[at].nic_seq, nic_seq);
}

/* A mark older than this says nothing: polls are counted in 32 bits. */
#define OL_MARK_LIFE_NS 60000000000ULL

/* The earliest noted time by which the packets up to poll `seq` passed that way, or 0. */
OL_INLINE __u64 ol_passed_by(const struct ol_marks *m, __u32 seq, int nic, __u64 now)
{
	__u64 best = 0;
	int i;

#ifndef HOST_TEST
#pragma unroll
#endif
	for (i = 0; i < OL_MARKS; i++) {
		__u32 passed = nic ? OL_READ(m->mark[i].nic_seq) : OL_READ(m->mark[i].seq);
		__u64 t = OL_READ(m->mark[i].time);

		if (t && t + OL_MARK_LIFE_NS > now && ol_after(passed, seq) && (!best || t < best))
			best = t;
	}
	return best;
}

/* By when were the packets up to poll `seq` handed on? 0: not known to be. */
OL_INLINE __u64 ol_handed_on(const struct ol_marks *m, __u32 seq, __u64 now)
{
	return ol_passed_by(m, seq, 0, now);
}

/*
 * The same for packets that were let through to the NIC's GRO: they pass it, the
 * outer stack and the tunnel's GRO cell.
 */
OL_INLINE __u64 ol_handed_on_nic(const struct ol_marks *m, __u32 seq, __u64 now)
{
	return ol_passed_by(m, seq, 1, now);
}

/*
 * To be called by the queue's core: head and tail as read just now, in this
 * order and after now. If the queue was empty, all that came before has been
 * handled; else what came before an earlier look may have been.
 */
OL_INLINE void ol_progress_step(struct ol_progress *p, __u32 head, __u32 tail, __u64 now)
{
	if (head == tail) {
		p->safe = now;
		p->armed = 0;
		return;
	}
	if (p->armed && ol_after(p->pending_tail, head))
		return;
	if (p->armed)
		p->safe = p->pending_time;
	p->pending_tail = tail;
	p->pending_time = now;
	p->armed = 1;
}

/* Frames that the ring of a veth holds (drivers/net/veth.c, VETH_RING_SIZE). */
#define OL_PORT_RING 256

/*
 * A pod's end has been polled. Full: it may have left frames in its ring. holds: its GRO
 * did. before: no later than the poll began.
 */
OL_INLINE void ol_port_step(struct ol_port *p, __u32 work, int full, int holds, __u64 before,
			    __u64 now)
{
	if (holds) {
		p->armed = 0;
		return;
	}
	if (!full) {
		OL_WRITE(p->safe, before);
		p->armed = 0;
		return;
	}
	/* What a full poll took last is handed on behind it: the next one tells. */
	if (p->armed && p->left) {
		p->left -= work < p->left ? work : p->left;
		return;
	}
	if (p->armed)
		OL_WRITE(p->safe, p->pending_time);
	p->pending_time = now;
	p->left = OL_PORT_RING;
	p->armed = 1;
}

/*
 * Has a queue handled what was handed on to it by `handed`? empty: its head and
 * tail were read equal after that.
 */
OL_INLINE int ol_queue_drained(const struct ol_progress *p, __u64 handed, int empty)
{
	return empty || handed + OL_CLOCK_SLACK_NS <= p->safe;
}

#endif
