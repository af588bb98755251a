// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Priority (PRISM) on the underlay, before an skb exists. Frames of the latency class
 * take the stock path, in the NIC's poll. While there are such, bulk frames go to a
 * lane: a cpumap thread on the same core, which the NIC's poll preempts.
 *
 * Everything of a core's state is written by that core, between whose polls the
 * lane's thread runs, never within one: what a poll finds at its first frame holds
 * until it ends.
 */
#include "kernel.h"
#include "napi.h"
#include "parse.h"
#include "steer.h"
#include "classes.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* max_entries is set by the loader. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ol_prio);
} ol_prios SEC(".maps");

/* When flows last sent to this core's lane, us, or 0. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OL_LAST_LISTS *OL_LAST_PLACES);
	__type(key, __u32);
	__type(value, __u32);
} ol_lasts SEC(".maps");

/* The last flow that this core's hook judged: packets of a flow come in runs. */
struct ol_judged {
	struct ol_flow flow;
	__u32 poll;
	__u32 verdict;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ol_judged);
} ol_judgements SEC(".maps");

/* Inner datagrams in pieces: what their first piece told of them. */
struct ol_piece_judged {
	__u64 datagram;
	__u64 flow;
	__u32 class;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OL_FRAGS);
	__type(key, __u32);
	__type(value, struct ol_piece_judged);
} ol_pieces SEC(".maps");

/* The first frame of a poll. */
__noinline int ol_prio_begin(struct ol_prio *p, __u32 this_cpu)
{
	struct ol_policy *policy = ol_get_policy();
	struct ol_leave *leave = bpf_map_lookup_elem(&ol_leaves, &this_cpu);
	__u32 before, table, now = bpf_ktime_get_ns() / 1000;
	struct ol_lane_look look = {};
	struct ol_ring ring;
	int empty;

	if (!p || !policy || !leave)
		return 0;
	before = p->now;
	/* Polls are told apart by it. 0 is for never. */
	if (before - now < OL_PRIO_LIFE_US)
		now = before + 1;
	p->now = now + !now;
	p->poll = p->polls + 1;
	p->room = 0;
	table = policy->rules_table & 1;
	/* A lane whose thread may run on another core is none: its frames could come late. */
	if ((OL_READ(leave->strayed) && !OL_READ(leave->leaving)) ||
	    !ol_get_ring(this_cpu, &ring)) {
		p->demoted = 0;
		p->table = table;
		return 0;
	}
	look.used = ol_ring_from(&ring, ring.consumer);
	look.consumer = ring.consumer;
	look.size = ring.size;
	look.asleep = ring.asleep;
	empty = ol_lane_step(p, &look, before);
	if (look.used < policy->bulk_room)
		p->room = policy->bulk_room - look.used;
	ol_prio_turn(p, policy->latency_window_us, table, empty);
	return 0;
}

/* What the first piece of a datagram tells of it, to itself and to the later ones. */
static __always_inline __u32 ol_prio_piece(const struct ol_prio *p, const struct ol_flow *f,
					   __u64 *flow)
{
	__u64 datagram = ol_piece_hash(f, ol_key0, ol_key1);
	__u32 key = datagram >> 32 & (OL_FRAGS - 1);
	struct ol_piece_judged *first = bpf_map_lookup_elem(&ol_pieces, &key);

	*flow = datagram;
	if (!first)
		return OL_CLASS_BULK;
	if (f->piece == OL_PIECE_FIRST) {
		first->datagram = datagram;
		first->flow = ol_flow_hash(f, ol_key0, ol_key1);
		first->class = ol_class_of(f, p->table);
	} else if (first->datagram != datagram) {
		return OL_CLASS_BULK;
	}
	*flow = first->flow;
	return first->class;
}

/* What is done with a flow's frames until the poll ends, as long as the lane has room. */
static __always_inline enum ol_prio_verdict ol_prio_judge(struct ol_prio *p,
							  const struct ol_flow *f)
{
	__u32 class, gro = f->proto == OL_IPPROTO_TCP, key, *a, *b;
	__u64 flow = 0;

	class = f->piece == OL_PIECE_WHOLE ? ol_class_of(f, p->table) : ol_prio_piece(p, f, &flow);
	if (!p->demoted)
		return class == OL_CLASS_LATENCY ? OL_PRIO_LATENCY : OL_PRIO_BULK;
	if (!flow)
		flow = ol_flow_hash(f, ol_key0, ol_key1);
	key = flow % OL_LAST_PLACES;
	a = bpf_map_lookup_elem(&ol_lasts, &key);
	key = OL_LAST_PLACES + (flow >> 32) % OL_LAST_PLACES;
	b = bpf_map_lookup_elem(&ol_lasts, &key);
	if (!a || !b)
		return OL_PRIO_BULK; /* cannot be */
	/* Other flows may share a place, hardly both. */
	if (class == OL_CLASS_LATENCY && (ol_lane_left(p, *a, gro) || ol_lane_left(p, *b, gro)))
		return OL_PRIO_LATENCY;
	*a = *b = p->now;
	return class == OL_CLASS_LATENCY ? OL_PRIO_LATENCY_LANE : OL_PRIO_BULK_LANE;
}

SEC("xdp.frags")
int ol_priority_xdp(struct xdp_md *ctx)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), tunnel = OL_MAX_TUNNELS, zero = 0;
	struct ol_judged *last = bpf_map_lookup_elem(&ol_judgements, &zero);
	struct ol_prio *p = bpf_map_lookup_elem(&ol_prios, &this_cpu);
	struct ol_policy *policy = ol_get_policy();
	enum ol_prio_verdict verdict;
	struct ol_flow flow = {};
	__u8 may_concern = 0;
	struct ol_cursor c;

	if (!policy || !p || !last)
		return XDP_PASS;
	c.data = (void *)(long)ctx->data;
	c.end = (void *)(long)ctx->data_end;
	/* Lengths that contradict each other are the stack's to judge. */
	c.total = 0;
	if (ol_classify(&c, policy, &tunnel, &flow, &may_concern))
		return XDP_PASS;

	if (p->poll != p->polls + 1)
		ol_prio_begin(p, this_cpu);
	if (last->poll != p->poll || flow.piece != OL_PIECE_WHOLE ||
	    last->flow.piece != OL_PIECE_WHOLE || !ol_same_flow(&last->flow, &flow)) {
		last->flow = flow;
		last->poll = p->poll;
		last->verdict = ol_prio_judge(p, &flow);
	}
	verdict = last->verdict;
	if (verdict == OL_PRIO_LATENCY || verdict == OL_PRIO_LATENCY_LANE) {
		p->seen = p->now;
		p->ever = 1;
	}
	if (verdict == OL_PRIO_BULK_LANE || verdict == OL_PRIO_LATENCY_LANE) {
		if (p->room)
			p->room--;
		else
			verdict = OL_PRIO_REFUSED;
	}
	if (verdict < OL_NR_PRIO_VERDICTS)
		p->frames[verdict]++;
	switch (verdict) {
	case OL_PRIO_BULK_LANE:
	case OL_PRIO_LATENCY_LANE:
		return bpf_redirect_map(&ol_lane_threads, this_cpu, XDP_PASS);
	case OL_PRIO_REFUSED:
		return XDP_DROP;
	default:
		return XDP_PASS;
	}
}

/* Polls of NICs end: what a verdict was based on may have changed. */
SEC("tp_btf/napi_poll")
int BPF_PROG(ol_prio_polled, struct napi_struct *napi, int work, int budget)
{
	__u32 this_cpu = bpf_get_smp_processor_id();
	struct ol_prio *p = bpf_map_lookup_elem(&ol_prios, &this_cpu);

	if (!p || ol_device_of(napi) != OL_MAX_TUNNELS)
		return 0;
	p->polls++;
	if (ol_gro_holds(napi))
		p->holds = (__u64)napi;
	else if (p->holds == (__u64)napi)
		p->holds = 0;
	return 0;
}
