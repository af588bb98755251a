// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The resequencer: a BPF qdisc on a device of ours, by which split flows leave for their
 * pods. What is next in a flow's order may go, what comes early waits. The hook
 * in front of it has left in each packet what there is to know of it; a packet without
 * that goes as it comes.
 *
 * A qdisc is used under its lock, and all packets of a flow come by one of them: only
 * what other hooks look at is written with care.
 */
#include "kernel.h"
#include "steer.h"
#include "merge.h"
#include "qdisc.h"

char LICENSE[] SEC("license") = "GPL";

/* How long a packet waits at most, ns; told by the loader. */
const volatile __u64 ol_merge_limit_ns = 100000000;

/*
 * For so long after its last heartbeat the daemon looks after the merge. What comes here
 * was sent by a program that ends with the daemon, and waits no longer than the limit in
 * any case: this is for a daemon that hangs, and long enough for one that is kept waiting.
 */
#define OL_HEARTBEAT_NS 1000000000

/*
 * Behind the resequencer a packet waits in the backlog of its flow's core, which drops what
 * it has no room for (net.core.netdev_max_backlog). When so many of a flow have waited for one,
 * they go as fast as that core takes them: while it is half full, none is let go before its
 * limit; ns until it is looked at again.
 */
#define OL_CROWD 32
#define OL_AHEAD_NS 100000

/* Packets that a backlog has room for: net.core.netdev_max_backlog. */
const volatile __u32 ol_backlog_room = 1000;

/* When the daemon last sent a heartbeat, ns. */
__u64 ol_merge_heartbeat SEC(".data.heartbeat") = 0;

/* One for each branch, and one for what comes by none. */
#define OL_MERGE_QUEUES (OL_ALL_BRANCHES + 1)

/*
 * A packet that waits. A branch brings what it was sent in order: a queue for each of a
 * flow's branches, of which only the first is looked at, is all the sorting there is.
 * Index: (flow * OL_MERGE_QUEUES + branch) * OL_MERGE_DEPTH + place.
 */
struct ol_waiting {
	struct sk_buff __kptr *skb;
	__u64 since;
	__u32 seq;
	__u32 end;
};

OL_MAP(ARRAY, ol_waitings, (OL_MERGES * OL_MERGE_QUEUES * OL_MERGE_DEPTH), __u32,
       struct ol_waiting);

/* Flows, by their place among the merging. Queues: taken and put, by count. */
struct ol_merge_flow {
	struct ol_merge order;
	__u32 head[OL_MERGE_QUEUES];
	__u32 tail[OL_MERGE_QUEUES];
};

OL_MAP(ARRAY, ol_merge_flows, OL_MERGES, __u32, struct ol_merge_flow);

OL_MAP(ARRAY, ol_resequencers, OL_RESEQUENCERS, __u32, struct ol_resequencer);

/* Packets that may go. Index: resequencer * OL_MERGE_READY + place. */
struct ol_ready {
	struct sk_buff __kptr *skb;
};

OL_MAP(ARRAY, ol_readies, (OL_RESEQUENCERS * OL_MERGE_READY), __u32, struct ol_ready);

OL_MAP(PERCPU_ARRAY, ol_merge_counters, OL_NR_MERGE_COUNTERS, __u32, __u64);

static __always_inline void ol_merge_count(enum ol_merge_counter c, __u32 n)
{
	ol_add(&ol_merge_counters, c, n);
}

/* Packets that this was on the wire. */
static __always_inline __u32 ol_segs_of(const struct sk_buff *skb)
{
	const struct ol_merge_mark *mark = ol_mark_of(skb);

	return mark->magic == ol_merge_magic ? mark->segs : 1;
}

static __always_inline struct ol_resequencer *ol_resequencer_of(struct Qdisc *sch)
{
	return ol_at(&ol_resequencers, sch->limit);
}

/* Does the daemon look after the merge, so that what waits will be let go in time? */
static __always_inline int ol_looked_after(__u64 now)
{
	return (__s64)(now - OL_READ(ol_merge_heartbeat)) < OL_HEARTBEAT_NS;
}

static __always_inline struct ol_waiting *ol_get_waiting(__u32 flow, __u32 branch, __u32 place)
{
	return ol_at(&ol_waitings,
		     (flow * OL_MERGE_QUEUES + branch) * OL_MERGE_DEPTH + place % OL_MERGE_DEPTH);
}

static __always_inline struct ol_ready *ol_get_ready(__u32 resequencer, __u32 place)
{
	return ol_at(&ol_readies, resequencer * OL_MERGE_READY + place % OL_MERGE_READY);
}

/* Takes the first packet that may go. */
static __always_inline struct sk_buff *ol_take_ready(struct ol_resequencer *p, __u32 at)
{
	struct ol_ready *r = ol_get_ready(at, p->head++);

	return r ? bpf_kptr_xchg(&r->skb, NULL) : NULL;
}

/*
 * Which verdict does a packet get that the hook in front has marked? Where it has to wait, the
 * place for it. Unless watched none waits: it is as if what comes before had been waited for.
 */
static __always_inline enum ol_merge_verdict ol_merge_judge(const struct ol_merge_mark *mark,
							    int watched, struct ol_waiting **place)
{
	__u32 at = mark->place, b = mark->branch;
	struct ol_merging *g = bpf_map_lookup_elem(&ol_mergings, &at);
	struct ol_merge_flow *f = bpf_map_lookup_elem(&ol_merge_flows, &at);
	enum ol_merge_verdict verdict;
	__u32 generation;

	*place = NULL;
	if (!g || !f)
		return OL_MERGE_GO;
	generation = OL_READ(g->generation);
	/* A flow that is not split any more has come whole. */
	if (mark->generation != generation)
		return OL_MERGE_GO;
	if (f->order.generation != generation)
		ol_merge_begin(&f->order, generation, OL_READ(g->first));
	/* A lane's core may poll the NIC as well, even within its thread: what it was not sent
	 * came by none.
	 */
	if (b >= OL_ALL_BRANCHES || ol_after(mark->end, OL_READ(g->sent[b])))
		b = OL_ALL_BRANCHES;
	verdict = ol_merge_arrives(&f->order, b, mark->seq, mark->end,
				   watched ? f->tail[b] - f->head[b] : 0);
	if (!watched) {
		ol_merge_leaves(&f->order, mark->end);
		verdict = OL_MERGE_GO;
	}
	OL_WRITE(g->next, f->order.next);
	if (verdict != OL_MERGE_WAIT)
		return verdict;
	*place = ol_get_waiting(at, b, f->tail[b]);
	if (!*place)
		return OL_MERGE_FULL;
	f->tail[b]++;
	OL_WRITE(g->held, g->held + 1);
	return verdict;
}

/* There is no room for a packet. */
static __always_inline void ol_refuse(const struct sk_buff *skb)
{
	const struct ol_merge_mark *mark = ol_mark_of(skb);
	__u32 at = mark->place;
	struct ol_merging *g = NULL;

	if (mark->magic == ol_merge_magic)
		g = bpf_map_lookup_elem(&ol_mergings, &at);
	if (g)
		OL_WRITE(g->refused, g->refused + 1);
	ol_merge_count(OL_MERGE_REFUSED, ol_segs_of(skb));
}

SEC("struct_ops")
int BPF_PROG(ol_merge_enqueue, struct sk_buff *skb, struct Qdisc *sch,
	     struct bpf_sk_buff_ptr *to_free)
{
	struct ol_resequencer *p = ol_resequencer_of(sch);
	const struct ol_merge_mark *mark = ol_mark_of(skb);
	__u32 at = sch->limit, len = ol_pkt_len(skb);
	enum ol_merge_verdict verdict;
	struct ol_waiting *w;
	struct ol_merge_mark m;
	struct ol_ready *r;
	struct sk_buff *old;
	int watched;
	__u64 now;

	if (!p)
		goto drop;
	if (mark->magic == ol_merge_magic) {
		m = *mark;
		now = bpf_ktime_get_ns();
		watched = ol_looked_after(now);
		verdict = ol_merge_judge(&m, watched, &w);
		p->look |= 1U << (m.place % OL_MERGES);
		if (w) {
			w->since = now;
			w->seq = m.seq;
			w->end = m.end;
			old = bpf_kptr_xchg(&w->skb, skb);
			if (old)
				bpf_qdisc_skb_drop(old, to_free);
			p->active |= 1U << (m.place % OL_MERGES);
			p->held++;
			sch->q.qlen++;
			sch->qstats.backlog += len;
			ol_merge_count(OL_MERGE_HELD, m.segs);
			return NET_XMIT_SUCCESS;
		}
		if (verdict == OL_MERGE_FULL)
			goto drop;
		ol_merge_count(watched ? OL_MERGE_PASSED : OL_MERGE_UNWATCHED, m.segs);
		if (verdict == OL_MERGE_GO_LATE)
			ol_merge_count(OL_MERGE_LATE, m.segs);
	}
	if (p->tail - p->head >= OL_MERGE_READY)
		goto drop;
	r = ol_get_ready(at, p->tail);
	if (!r)
		goto drop;
	old = bpf_kptr_xchg(&r->skb, skb);
	if (old)
		bpf_qdisc_skb_drop(old, to_free);
	p->tail++;
	sch->q.qlen++;
	sch->qstats.backlog += len;
	return NET_XMIT_SUCCESS;
drop:
	ol_refuse(skb);
	bpf_qdisc_skb_drop(skb, to_free);
	return NET_XMIT_DROP;
}

/*
 * The functions that are not inlined are global ones, which the verifier looks at once
 * each: what they find out, they leave in one of these.
 */
struct ol_first {
	__u32 flow;
	__u32 branch; /* whose queue has the one that is first in order; none: OL_MERGE_QUEUES */
	__u32 seq;    /* its number */
	__u32 go;     /* it may */
	__u64 since;  /* since when one has waited */
	__u64 until;  /* when it may at the latest; 0: none waits */
};

/* Of a flow's packets that wait, the first in order. */
__noinline int ol_find_first(__u32 at, struct ol_first *first)
{
	struct ol_merge_flow *f = bpf_map_lookup_elem(&ol_merge_flows, &at);
	struct ol_waiting *w;
	__u32 b;

	if (!first)
		return 0;
	first->branch = OL_MERGE_QUEUES;
	if (!f)
		return 0;
	for (b = 0; b < OL_MERGE_QUEUES; b++) {
		if (f->head[b] == f->tail[b])
			continue;
		w = ol_get_waiting(at, b, f->head[b]);
		if (!w)
			continue;
		if (first->branch == OL_MERGE_QUEUES || w->since < first->since)
			first->since = w->since;
		if (first->branch == OL_MERGE_QUEUES || ol_after(first->seq, w->seq)) {
			first->branch = b;
			first->seq = w->seq;
		}
	}
	return 0;
}

/* Has the core behind the resequencer enough to do? */
static __always_inline int ol_pod_full(const struct ol_merging *g)
{
	struct ol_policy *policy = ol_get_policy();
	struct ol_lanes *lanes;
	__u32 head, tail;

	if (!policy)
		return 0;
	lanes = &policy->stage[OL_STAGE_POD];
	if (!lanes->nr)
		return 0;
	return ol_backlog(lanes->cpu[ol_lane_index(g->behind % lanes->nr)], &head, &tail) &&
	       (__s32)(tail - head) > (__s32)(ol_backlog_room / 2);
}

/* May it go? all: whatever waits may. */
__noinline int ol_may_go(__u32 at, __u64 now, int all, struct ol_first *first)
{
	struct ol_merge_flow *f = bpf_map_lookup_elem(&ol_merge_flows, &at);
	struct ol_merging *g = bpf_map_lookup_elem(&ol_mergings, &at);

	if (!first)
		return 0;
	first->go = 0;
	first->until = 0;
	first->flow = at;
	if (!f || !g)
		return 0;
	ol_find_first(at, first);
	if (first->branch >= OL_MERGE_QUEUES)
		return 0;
	first->until = first->since + ol_merge_limit_ns;
	if (!all && g->held > OL_CROWD && (__s64)(now - first->until) < 0 && ol_pod_full(g)) {
		if (now + OL_AHEAD_NS < first->until)
			first->until = now + OL_AHEAD_NS;
		return 0;
	}
	first->go = 1;
	if (all || !ol_after(first->seq, f->order.next))
		return 0;
	if (ol_merge_lost(&f->order, g->sent)) {
		/* What a branch that was given up may still have is not known to be lost. */
		ol_merge_count(f->order.given_up ? OL_MERGE_EXPIRED : OL_MERGE_GAPS, 1);
	} else if ((__s64)(now - first->until) >= 0) {
		ol_merge_count(OL_MERGE_EXPIRED, 1);
		ol_merge_give_up(&f->order, g->sent);
	} else {
		first->go = 0;
	}
	return 0;
}

/*
 * Finds one that may go, among those that wait at a resequencer. Whether one may changes
 * with what arrives and when the limit is reached: flows are looked at then only.
 */
__noinline int ol_pick(__u32 resequencer, __u64 now, int all, struct ol_first *first)
{
	struct ol_resequencer *p = bpf_map_lookup_elem(&ol_resequencers, &resequencer);
	__u32 i;

	if (!first)
		return 0;
	first->go = 0;
	if (!p)
		return 0;
	if (all || (p->until && (__s64)(now - p->until) >= 0)) {
		p->look = p->active;
		p->until = 0;
	}
	for (i = 0; i < OL_MERGES; i++) {
		if (!(p->active & p->look & 1U << i))
			continue;
		ol_may_go(i, now, all, first);
		if (first->go)
			return 0;
		p->look &= ~(1U << i);
		if (!first->until)
			p->active &= ~(1U << i);
		else if (!p->until || first->until < p->until)
			p->until = first->until;
	}
	if (!p->active)
		p->until = 0;
	return 0;
}

/* Takes it out of its queue. */
static __always_inline struct sk_buff *ol_take(struct ol_resequencer *p,
					       const struct ol_first *first)
{
	__u32 at = first->flow, b = first->branch;
	struct ol_merge_flow *f = bpf_map_lookup_elem(&ol_merge_flows, &at);
	struct ol_merging *g = bpf_map_lookup_elem(&ol_mergings, &at);
	struct ol_waiting *w;

	if (!f || !g || b >= OL_MERGE_QUEUES)
		return NULL;
	w = ol_get_waiting(at, b, f->head[b]);
	if (!w)
		return NULL;
	f->head[b]++;
	ol_merge_leaves(&f->order, w->end);
	OL_WRITE(g->next, f->order.next);
	OL_WRITE(g->held, g->held - 1);
	p->held--;
	return bpf_kptr_xchg(&w->skb, NULL);
}

SEC("struct_ops")
struct sk_buff *BPF_PROG(ol_merge_dequeue, struct Qdisc *sch)
{
	struct ol_resequencer *p = ol_resequencer_of(sch);
	__u32 at = sch->limit;
	struct ol_first first = {};
	struct sk_buff *skb = NULL;
	__u64 now;
	int all;

	if (!p)
		return NULL;
	if (p->head != p->tail) {
		skb = ol_take_ready(p, at);
	} else if (p->active) {
		now = bpf_ktime_get_ns();
		all = !ol_looked_after(now);
		ol_pick(at, now, all, &first);
		if (first.go) {
			skb = ol_take(p, &first);
			if (skb && all)
				ol_merge_count(OL_MERGE_UNWATCHED, ol_segs_of(skb));
		} else if (p->until) {
			bpf_qdisc_watchdog_schedule(sch, p->until, 10000);
		}
	}
	if (!skb)
		return NULL;
	sch->q.qlen--;
	sch->qstats.backlog -= ol_pkt_len(skb);
	bpf_qdisc_bstats_update(sch, skb);
	return skb;
}

/* Finds the qdisc a place among the resequencers, which it keeps where its limit would be. */
SEC("struct_ops")
int BPF_PROG(ol_merge_init, struct Qdisc *sch, struct nlattr *opt, struct netlink_ext_ack *extack)
{
	struct ol_resequencer *p;
	__u32 i;

	for (i = 0; i < OL_RESEQUENCERS; i++) {
		p = ol_at(&ol_resequencers, i);
		if (!p || __sync_val_compare_and_swap(&p->used, 0, 1))
			continue;
		p->head = p->tail = p->held = 0;
		p->active = p->look = 0;
		p->until = 0;
		sch->limit = i;
		return 0;
	}
	return -OL_ENOSPC;
}

static long ol_drop_ready(__u64 i, __u32 *at)
{
	struct ol_resequencer *p = bpf_map_lookup_elem(&ol_resequencers, at);
	struct sk_buff *skb;

	if (!p || p->head == p->tail)
		return 1;
	skb = ol_take_ready(p, *at);
	if (skb) {
		ol_merge_count(OL_MERGE_DROPPED, ol_segs_of(skb));
		bpf_kfree_skb(skb);
	}
	return 0;
}

static long ol_drop_waiting(__u64 i, __u32 *at)
{
	struct ol_resequencer *p = bpf_map_lookup_elem(&ol_resequencers, at);
	struct ol_first first = {};
	struct sk_buff *skb;

	if (!p)
		return 1;
	ol_pick(*at, 0, 1, &first);
	if (!first.go)
		return 1;
	skb = ol_take(p, &first);
	if (skb) {
		ol_merge_count(OL_MERGE_DROPPED, ol_segs_of(skb));
		bpf_kfree_skb(skb);
	}
	return 0;
}

/* It is taken away, or its device was set down. */
SEC("struct_ops")
void BPF_PROG(ol_merge_reset, struct Qdisc *sch)
{
	__u32 at = sch->limit;

	ol_merge_ends();
	bpf_loop(OL_MERGE_READY, ol_drop_ready, &at, 0);
	bpf_loop(OL_MERGES * OL_MERGE_QUEUES * OL_MERGE_DEPTH, ol_drop_waiting, &at, 0);
	sch->q.qlen = 0;
	sch->qstats.backlog = 0;
}

SEC("struct_ops")
void BPF_PROG(ol_merge_destroy, struct Qdisc *sch)
{
	struct ol_resequencer *p = ol_resequencer_of(sch);

	ol_merge_ends();
	if (p)
		OL_WRITE(p->used, 0);
}

/* Its name is made anew for each load. */
SEC(".struct_ops.link")
struct Qdisc_ops ol_merge_ops = {
	.enqueue = (void *)ol_merge_enqueue,
	.dequeue = (void *)ol_merge_dequeue,
	.init = (void *)ol_merge_init,
	.reset = (void *)ol_merge_reset,
	.destroy = (void *)ol_merge_destroy,
	.id = "overlane",
};
