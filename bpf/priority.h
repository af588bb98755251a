/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * PRISM's policy. Which rule fits a flow? The rules are a list of which the first
 * that fits wins, however many there are: rules that look at the same fields have one
 * shape, and one look-up finds the best of a shape. And then: how far has a lane come,
 * where does bulk go, what may latency take? Inputs in, decision out; no maps, no
 * helpers.
 */
#ifndef OVERLANE_PRIORITY_H
#define OVERLANE_PRIORITY_H

#include "abi.h"
#include "parse.h"
#include "head.h"

/* The side's address, as words in network byte order. */
OL_INLINE void ol_flow_addr(const struct ol_flow *f, int dst, __u32 addr[4])
{
	const __u64 *a = &f->addr[f->v6 && dst ? 2 : 0];

	if (!f->v6) {
		addr[0] = dst ? (__u32)a[0] : (__u32)(a[0] >> 32);
		addr[1] = addr[2] = addr[3] = 0;
		return;
	}
	addr[0] = a[0] >> 32;
	addr[1] = a[0];
	addr[2] = a[1] >> 32;
	addr[3] = a[1];
}

/* What a shape picks from a flow; host: in no tunnel. Returns 0 if no rule of it can fit. */
OL_INLINE int ol_rule_key_of(const struct ol_flow *f, int host, const struct ol_shape *s,
			     struct ol_rule_key *k)
{
	__u32 addr[4] = {};
	int i;

	if (s->fields & (host ? OL_FIELD_TUNNEL | OL_FIELD_VNI : OL_FIELD_HOST))
		return 0;
	k->proto = s->fields & OL_FIELD_PROTO ? f->proto : 0;
	k->dscp = s->fields & OL_FIELD_DSCP ? f->dscp : 0;
	k->vni = s->fields & OL_FIELD_VNI ? (__u32)f->tail & 0xffffff : 0;
	k->port = 0;
	if (s->fields & (OL_FIELD_SRC_PORT | OL_FIELD_DST_PORT)) {
		__u32 ports = f->tail >> 32;

		if (!ports)
			return 0;
		/* As they stand in the packet: the source port first. */
		k->port = s->fields & OL_FIELD_DST_PORT ? ports >> 16 : ports & 0xffff;
	}
	if (s->fields & (OL_FIELD_SRC_ADDR | OL_FIELD_DST_ADDR)) {
		if (s->v6 != f->v6)
			return 0;
		ol_flow_addr(f, !!(s->fields & OL_FIELD_DST_ADDR), addr);
	}
	for (i = 0; i < 4; i++)
		k->addr[i] = addr[i] & s->mask[i];
	return 1;
}

/* Per lane, lists of flows' times, of which each flow has a place in either. */
#define OL_LAST_LISTS 2
#define OL_LAST_PLACES 4096

/* Us that a frame waits in a lane, at most by far: older times have wrapped. */
#define OL_PRIO_LIFE_US 0x40000000U

/* A is not after b; times in us that wrap. */
OL_INLINE int ol_not_after(__u32 a, __u32 b)
{
	return (__s32)(a - b) <= 0;
}

/* What a core knows of a lane's ring at the beginning of a poll. */
struct ol_lane_look {
	__u32 used;	/* frames in it */
	__u32 consumer; /* where the next one is taken */
	__u32 size;
	int asleep; /* the thread has handled all that it took, and found nothing more */
};

/*
 * Frames that the thread may have taken and not handed on: a batch (kernel/bpf/cpumap.c,
 * CPUMAP_BATCH), and since Linux 6.15 what its GRO has joined with nothing and keeps in a list
 * of its own, until 64 frames have come or the ring is empty (gro_normal_one, include/net/gro.h).
 */
#define OL_LANE_BATCH 8
#define OL_LANE_FLUSH 64

/*
 * How far has the lane come? Watched from the core that fills it, between polls, so
 * that nothing is being added meanwhile. What the thread had taken so many frames ago has
 * been handed on. More than the ring's size may have been taken since the last look,
 * and is counted short. Returns 1 if the lane is empty and its thread done.
 */
OL_INLINE int ol_lane_step(struct ol_lane_watch *w, const struct ol_lane_look *l, __u32 last_poll)
{
	__u32 took = l->consumer - w->consumer;

	if (l->consumer < w->consumer)
		took += l->size;
	w->taken += took;
	w->consumer = l->consumer;
	if (!l->used && l->asleep) {
		w->safe = w->empty = last_poll;
		w->armed = 0;
		return 1;
	}
	if (w->armed && !ol_not_after(w->until, w->taken))
		return 0;
	if (w->armed)
		w->safe = w->before;
	w->until = w->taken + l->used + OL_LANE_FLUSH + OL_LANE_BATCH;
	w->before = last_poll;
	w->armed = 1;
	return 0;
}

/*
 * A frame of a bulk lane takes a number along, as XDP's metadata: the lane's GRO joins only what
 * has the same. A super-packet of 64 datagrams takes the stack some 20 us, in which no poll of the
 * NIC can preempt it, so each has a number of its own; the tunnel's cells, polled behind each few
 * frames, join no more than these. In overload, what costs less is worth more than what is
 * short: then all have the same. The low bits are zero: programs that look there take them for flags.
 */
OL_INLINE __u32 ol_prio_number(struct ol_prio *p)
{
	if (!p->joins)
		p->number++;
	return p->number << 8;
}

/* Overload is when a quarter of what is for the lane is refused, in so many us ... */
#define OL_JOIN_LOOK_US 100000
/* ... and it has ended when nothing was, so many looks in a row. */
#define OL_JOIN_CALM 100

/*
 * The beginning of a poll: shall the lane join frames? That changes only while it is empty: GRO
 * would let go of joined ones before others that it holds of their flow. Returns whether it
 * is to be emptied for that, by refusing what comes: in overload that is lost anyway.
 */
OL_INLINE int ol_prio_join(struct ol_prio *p, int empty)
{
	__u64 refused = p->frames[OL_CLASS_BULK][OL_VERDICT_REFUSED], missed = refused - p->refused;
	__u64 laned = p->frames[OL_CLASS_BULK][OL_VERDICT_BULK_LANE],
	      came = laned - p->laned + missed;

	if (p->now - p->looked >= OL_JOIN_LOOK_US) {
		p->calm = missed ? 0 : p->calm + 1;
		if (missed && missed >= came / 4)
			p->join = 1;
		else if (p->calm >= OL_JOIN_CALM)
			p->join = 0;
		p->looked = p->now;
		p->refused = refused;
		p->laned = laned;
	}
	if (p->join == p->joins)
		return 0;
	if (!empty)
		return p->join;
	p->joins = p->join;
	p->number++;
	return 0;
}

/*
 * Has everything that a flow sent to the lane by `last` been handed on? GRO may hold
 * TCP's for as long as the lane is busy.
 */
OL_INLINE int ol_lane_left(const struct ol_lane_watch *w, __u32 last, __u32 now, int gro)
{
#ifdef OL_MUTANT_NO_GUARD
	return 1;
#endif
	return !last || now - last > OL_PRIO_LIFE_US ||
	       ol_not_after(last, gro ? w->empty : w->safe);
}

/*
 * The beginning of a poll: where shall bulk go in it? The stock path and the lanes
 * meet in this core's queues behind the NIC, first come first served: what has been
 * handed on by one cannot be overtaken by the other. Held back are only what waits
 * in a lane, and what the NIC's GRO holds. lanes_empty: and their threads are done. busy: in these
 * queues they can be overtaken.
 *
 * A lane that, once bulk need not make way any more, is more than half full all the while its
 * thread handles as many frames as it has room for gets more than that thread can do. It is
 * emptied by refusing what comes: that is lost anyway, and on the stock path the core can do more.
 * Being never empty tells nothing: flows that wait for answers, as TCP's, always have frames in
 * it, and none need be lost. Nor does time: a thread that has to wait for its core is behind, too.
 * Without a window the daemon wants bulk on the stock path: being never empty is enough then.
 */
OL_INLINE void ol_prio_turn(struct ol_prio *p, const struct ol_policy *policy, int lanes_empty,
			    int busy)
{
	__u32 silence = p->now - p->seen;
	int about = p->ever && silence < policy->latency_window_us;
	struct ol_lane_watch *bulk = &p->lane[OL_CLASS_BULK];

	p->about = about;
	if (about || lanes_empty)
		p->empties = 0;
	if (about || (policy->latency_window_us && !p->empties && bulk->room >= p->reserve))
		p->owed = bulk->taken + policy->bulk_room;
	if (silence > OL_PRIO_LIFE_US)
		p->ever = 0;
	if (!p->holds) {
		p->table = policy->rules_table & 1;
		if (about && !busy)
			p->demoted = 1;
	}
	if (about)
		return;
	if (lanes_empty)
		p->demoted = 0;
	else if (ol_not_after(p->owed, bulk->taken))
		p->empties = 1;
	if (p->empties)
		bulk->room = 0;
}

/* Ns of its share that the latency class can save up. */
#define OL_PRIO_BURST_NS 10000000LL

/*
 * The latency class may take so many thousandths of this core's time; what it takes
 * is charged behind its polls. Once it has used that up it joins bulk, until it has
 * saved up half of the most that it can.
 */
OL_INLINE void ol_prio_earn(struct ol_prio *p, __u64 elapsed_ns, __u32 share)
{
	__s64 earned;

	/* What it can have saved up, and be behind, is earned in less than a second. */
	if (elapsed_ns > 1000000000)
		elapsed_ns = 1000000000;
	earned = elapsed_ns * share / 1000;
	if (earned > OL_PRIO_BURST_NS - p->budget)
		earned = OL_PRIO_BURST_NS - p->budget;
	p->budget += earned;
	p->over = p->budget < (p->over ? OL_PRIO_BURST_NS / 2 : 0);
}

/* What a poll hands on is polled within this time, or by another program. */
#define OL_PRIO_FOLLOWS_NS 1000000

/* What an idle time of a core cannot owe: a task that was kept from running. */
OL_INLINE void ol_prio_charge(struct ol_prio *p, __u64 ns)
{
	if (ns > OL_PRIO_BURST_NS)
		ns = OL_PRIO_BURST_NS;
	p->budget -= (__s64)(ns * p->latency >> 8);
	if (p->budget < -OL_PRIO_BURST_NS)
		p->budget = -OL_PRIO_BURST_NS;
}

/* Flows that no rule fits are watched in windows of so many us. */
#define OL_SPARSE_WINDOW_US 100000
/* A place is another flow's after so many of them without a packet. */
#define OL_SPARSE_GONE 10
/* A flow is latency after so many windows with at most half of what is too much ... */
#define OL_SPARSE_PROBATION 3
/* ... or after so many, if it was too much before. */
#define OL_SPARSE_RELAPSE 20

/*
 * The class of a watched flow, at a poll that brings packets of it. Becoming latency
 * takes longer, and asks for less traffic, than remaining it does: a flow at the
 * limit does not go to and fro.
 */
OL_INLINE __u32 ol_sparse_class(struct ol_sparse *s, __u32 now, __u32 frames, __u32 bytes)
{
	__u32 windows = (now - s->window) / OL_SPARSE_WINDOW_US;
	__u32 least = s->heavy ? OL_SPARSE_RELAPSE : OL_SPARSE_PROBATION;

	s->seen = now;
	if (s->frames > frames || s->bytes > bytes) {
		if (s->class != OL_CLASS_BULK)
			s->since = 0;
		s->class = OL_CLASS_BULK;
		s->heavy = 1;
		s->quiet = 0;
	}
	if (!windows)
		return s->class;
	s->since += windows;
	/* Windows without packets are as quiet as any. */
	if (s->frames > frames / 2 || s->bytes > bytes / 2)
		s->quiet = windows - 1;
	else
		s->quiet += windows;
	s->was_frames = s->frames;
	s->was_bytes = s->bytes;
	s->frames = s->bytes = 0;
	s->window += windows * OL_SPARSE_WINDOW_US;
	if (s->class == OL_CLASS_BULK && s->quiet >= least) {
		s->class = OL_CLASS_LATENCY;
		s->heavy = 0;
		s->since = 0;
	}
	return s->class;
}

/*
 * What one source sends in small, sparse flows, all together, may be as much as this many of them may. Else
 * a source that spreads a flood over many ports had the latency class for all of it.
 */
#define OL_SPARSE_FLOWS 8
/* Sources that are watched per core. */
#define OL_SPARSE_SOURCES 512

/* A flow's source: an address in its network, as a flow to look it up by. */
OL_INLINE void ol_source_of(const struct ol_flow *f, struct ol_flow *source)
{
	__builtin_memset(source, 0, sizeof(*source));
	source->v6 = f->v6;
	source->tail = f->tail & 0xffffff; /* the VNI */
	source->addr[0] = f->v6 ? f->addr[0] : f->addr[0] & ~0xffffffffULL;
	source->addr[1] = f->v6 ? f->addr[1] : 0;
}

/*
 * The class of a watched flow by itself and by its source, of which only those that are latency by
 * themselves count: a flood is one as long as it goes on, and bulk beside sparse flows takes nothing of theirs.
 */
OL_INLINE __u32 ol_sparse_bounded(struct ol_sparse *flow, struct ol_sparse *source, __u32 now,
				  __u32 frames, __u32 bytes)
{
	__u32 class = ol_sparse_class(flow, now, frames, bytes);
	__u32 all = ol_sparse_class(source, now, frames * OL_SPARSE_FLOWS, bytes * OL_SPARSE_FLOWS);

	flow->bound = class == OL_CLASS_LATENCY && all != OL_CLASS_LATENCY;
	return all == OL_CLASS_LATENCY ? class : OL_CLASS_BULK;
}

/* Frames that came of a watched flow. */
OL_INLINE void ol_sparse_add(struct ol_sparse *flow, struct ol_sparse *source, __u32 frames,
			     __u32 bytes)
{
	flow->frames += frames;
	flow->bytes += bytes;
	if (flow->class == OL_CLASS_LATENCY) {
		source->frames += frames;
		source->bytes += bytes;
	}
}

#define OL_HOST_WORDS 5 /* up to and including the ports */

/* Bytes of a word, the first in memory first. */
#define OL_BYTES(a, b, c, d, e, f, g, h)                                                         \
	((__u64)(a) | (__u64)(b) << 8 | (__u64)(c) << 16 | (__u64)(d) << 24 | (__u64)(e) << 32 | \
	 (__u64)(f) << 40 | (__u64)(g) << 48 | (__u64)(h) << 56)

/*
 * Which bytes of a frame tell what ol_classify and the rules look at. In front: type
 * and header length; then fragment and protocol; with a tunnel its port and header,
 * whether the inner frame is multicast, and the same of the inner headers. The outer
 * addresses and source port are nothing that flows in tunnels are told apart by.
 */
#define OL_TUNNEL_MASK                                            \
	{                                                         \
		0,                                                \
		OL_BYTES(0, 0, 0, 0, 255, 255, 255, 0),           \
		OL_BYTES(0, 0, 0, 0, 0x3f, 255, 0, 255),          \
		0,                                                \
		OL_BYTES(0, 0, 0, 0, 255, 255, 0, 0),             \
		OL_BYTES(0, 0, 255, 255, 255, 255, 255, 255),     \
		OL_BYTES(255, 255, 255, 0, 0, 0, 0, 0),           \
		OL_BYTES(0, 0, 0, 0, 0, 0, 255, 255),             \
		OL_BYTES(255, 255, 0, 0, 0, 0, 0x3f, 255),        \
		OL_BYTES(0, 255, 0, 0, 255, 255, 255, 255),       \
		OL_BYTES(255, 255, 255, 255, 255, 255, 255, 255), \
	}
#define OL_HOST_MASK                                          \
	{                                                     \
		OL_BYTES(1, 0, 0, 0, 0, 0, 0, 0),             \
		OL_BYTES(0, 0, 0, 0, 255, 255, 255, 255),     \
		OL_BYTES(0, 0, 0, 0, 0x3f, 255, 0, 255),      \
		OL_BYTES(0, 0, 255, 255, 255, 255, 255, 255), \
		OL_BYTES(255, 255, 255, 255, 255, 255, 0, 0), \
	}

/* Is the frame of the flow, and treated like the frame, whose head that is? */
OL_INLINE int ol_same_head(const struct ol_cursor *c, const struct ol_head *h)
{
	const __u64 tunnel[OL_HEAD_WORDS] = OL_TUNNEL_MASK, host[OL_HOST_WORDS] = OL_HOST_MASK;

	if (h->words == OL_HEAD_WORDS && OL_FITS(c, c->data, OL_HEAD_TUNNEL))
		return !ol_head_differs(c->data, h, tunnel, OL_HEAD_WORDS);
	if (h->words == OL_HOST_WORDS && OL_FITS(c, c->data, 8 * OL_HOST_WORDS))
		return !ol_head_differs(c->data, h, host, OL_HOST_WORDS);
	return 0;
}

/* Keeps the head of a frame that ol_classify gave a flow, if later ones can be compared with it. */
OL_INLINE void ol_keep_head(const struct ol_cursor *c, const struct ol_flow *f, int host,
			    __u32 inner, struct ol_head *h)
{
	const __u8 *d = c->data;

	h->words = 0;
	if (f->fragment != OL_FRAG_WHOLE || f->v6 || !f->ports)
		return;
	if (!host) {
		if (!ol_head_in_tunnel(c, inner))
			return;
		ol_head_keep(d, h, OL_HEAD_WORDS);
		return;
	}
	if (!OL_FITS(c, d, 8 * OL_HOST_WORDS) || ol_be16(d + 12) != OL_ETH_P_IP || d[14] != 0x45)
		return;
	ol_head_keep(d, h, OL_HOST_WORDS);
}

#endif
