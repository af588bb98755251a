// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Priority (PRISM) on the underlay, before an skb exists. Frames of the latency class
 * take the stock path, in the NIC's poll. While there are such, bulk frames go to a
 * lane: a cpumap thread on the same core, which the NIC's poll preempts. Where no
 * thread polls the NIC, latency frames have a lane of their own, whose thread preempts
 * that of bulk.
 *
 * Everything of a core's state is written by that core, between whose polls the
 * lanes' threads run, never within one: what a poll finds at its first frame holds
 * until it ends.
 */
#include "kernel.h"
#include "napi.h"
#include "xdp.h"
#include "classes.h"
#include "express_entries.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* When flows last sent to this core's lanes, us, or 0. */
OL_MAP(PERCPU_ARRAY, ol_lasts, (OL_NR_CLASSES * OL_LAST_LISTS * OL_LAST_PLACES), __u32, __u32);

/* Frames that a rule gave their class. Index: its place in the list, of either table. */
OL_MAP(PERCPU_ARRAY, ol_rule_frames, 2 * OL_MAX_RULES, __u32, __u64);

/* Flows, and behind them sources. Each has two places, of which it takes one. */
OL_MAP(PERCPU_ARRAY, ol_sparse_flows, OL_SPARSE + OL_SPARSE_SOURCES, __u32, struct ol_sparse);

/* A flow's class, and from where it has it: 0, or the place plus one. */
struct ol_judgement {
	__u32 class;
	__u32 rule;
	__u32 sparse;
	__u32 source; /* of a sparse one */
};

/* The last flow that this core's hook judged: packets of a flow come in runs. */
struct ol_judged {
	struct ol_head head;
	struct ol_flow flow;
	struct ol_judgement is;
	__u32 poll;
	__u8 verdict;
	__u8 held;     /* in the bulk lane, of the latency class: behind what is there */
	__u8 excess;   /* the same, since the budget is used up */
	__u8 host;     /* in no tunnel */
	__u8 straight; /* the last frame went straight to its pod */
	__u8 pad[3];
	__u32 frames; /* not yet told to where the class is from */
	__u32 bytes;
};

OL_MAP(PERCPU_ARRAY, ol_judgements, 1, __u32, struct ol_judged);

/* What the hook's frames came to, for the rule or flow that gave the class. */
static __always_inline void ol_prio_account(struct ol_judged *j)
{
	struct ol_sparse *s, *source;

	if (!j->frames)
		return;
	if (j->is.rule) {
		ol_add(&ol_rule_frames, j->is.rule - 1, j->frames);
	} else if (j->is.sparse) {
		s = ol_at(&ol_sparse_flows, j->is.sparse - 1);
		source = ol_at(&ol_sparse_flows, j->is.source - 1);
		if (s && source)
			ol_sparse_add(s, source, j->frames, j->bytes);
	}
	j->frames = j->bytes = 0;
}

/*
 * Beside aggregation: may a tunnel's cell of this core have packets in its queue, or its GRO? What
 * came by a lane has metadata, which stays with it, and so is another flow to GRO than what came by
 * the stock path: it may let go of either first.
 */
__noinline int ol_prio_cells_busy(__u32 this_cpu)
{
	struct ol_policy *policy = ol_get_policy();
	struct napi_struct *napi;
	struct ol_marks *m;
	__u32 i;

	if (!policy)
		return 1;
	for (i = 0; i < OL_MAX_TUNNELS && i < policy->nr_tunnels; i++) {
		m = ol_get_cell_marks(this_cpu, i);
		napi = m ? (void *)m->napi : NULL;
		if (napi && BPF_CORE_READ(napi, state) & OL_NAPI_SCHED)
			return 1;
	}
	return 0;
}

/*
 * A lane's ring at the beginning of a poll. Returns whether it is empty and its thread done. busy:
 * what it handed on may not be.
 */
static __always_inline int ol_prio_look(struct ol_prio *p, __u32 this_cpu, __u32 class,
					__u32 before, int busy)
{
	struct ol_lane_watch *w = &p->lane[class];
	struct ol_policy *policy = ol_get_policy();
	struct ol_lane_look look = {};
	struct ol_ring ring;
	__u32 room, holds;
	int empty;

	w->room = 0;
	if (!policy || !ol_get_ring(this_cpu, class, &ring))
		return 1;
	look.used = ol_ring_from(&ring, ring.consumer);
	look.consumer = ring.consumer;
	look.size = ring.size;
	look.asleep = ring.asleep && !busy;
	empty = ol_lane_step(w, &look, before);
	room = policy->bulk_room;
	holds = look.size > OL_RING_STALE ? look.size - OL_RING_STALE : 0;
	if (room > holds || (room && class == OL_CLASS_LATENCY))
		room = holds;
	if (class == OL_CLASS_BULK)
		p->reserve = room / 2;
	if (look.used < room)
		w->room = room - look.used;
	return empty;
}

static __always_inline void ol_prio_use_table(struct ol_prio *p)
{
	struct ol_shapes *shapes = ol_at(&ol_rule_shapes, p->table & 1);

	p->host = shapes && shapes->host;
}

/* The first frame of a poll. */
__noinline int ol_prio_begin(struct ol_prio *p, __u32 this_cpu, int two)
{
	struct ol_leave *leave = bpf_map_lookup_elem(&ol_leaves, &this_cpu);
	__u64 ns = bpf_ktime_get_ns(), elapsed;
	struct ol_policy *policy = ol_get_policy();
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	__u32 before, now = ns / 1000;
	int empty, busy;

	if (!p || !policy || !leave || !cpu)
		return 0;
	before = p->now;
	elapsed = ns - p->now_ns;
	/* Polls are told apart by it, and the clock may be slow. 0 is for never. */
	if ((__s64)elapsed < 1000000000 && ol_not_after(now, before))
		now = before + 1;
	p->now = now + !now;
	p->now_ns = ns;
	p->poll = p->polls + 1;
	p->brought = 0;
	p->apart = policy->flags & OL_F_APART;
	/* A lane whose thread may run on another core is none: its frames could come late. */
	if (!cpu->lane[OL_CLASS_BULK] || (two && !cpu->lane[OL_CLASS_LATENCY]) ||
	    (OL_READ(leave->strayed) && !OL_READ(leave->leaving))) {
		p->demoted = 0;
		p->table = policy->rules_table & 1;
		ol_prio_use_table(p);
		return 0;
	}
	busy = p->apart && ol_prio_cells_busy(this_cpu);
	empty = ol_prio_look(p, this_cpu, OL_CLASS_BULK, before, busy);
	if (ol_prio_join(p, empty) && p->apart)
		p->lane[OL_CLASS_BULK].room = 0;
	empty &= ol_prio_look(p, this_cpu, OL_CLASS_LATENCY, before, busy);
	ol_prio_turn(p, policy, empty, busy);
	ol_prio_use_table(p);
	ol_prio_earn(p, elapsed, policy->latency_share);
	return 0;
}

/* The place, plus one, of a flow or of a source; 0: none is free. */
__noinline int ol_sparse_place(const struct ol_prio *p, const struct ol_flow *f, __u32 host,
			       __u64 hash, int source)
{
	__u32 key, taken = 0, idle = 0;
	struct ol_sparse *s, *at = NULL;
	int i;

	if (!p || !f)
		return 0;
	key = source ? OL_SPARSE + hash % (OL_SPARSE_SOURCES / 2) * 2 : hash % (OL_SPARSE / 2) * 2;
	for (i = 0; i < 2; i++, key++) {
		s = bpf_map_lookup_elem(&ol_sparse_flows, &key);
		if (!s)
			return 0;
		if (s->used && s->host == host && ol_same_flow(&s->flow, f))
			return key + 1;
		/* One that goes on keeps its place: a flow that finds none is bulk. */
		if (s->used && p->now - s->seen <= OL_SPARSE_GONE * OL_SPARSE_WINDOW_US)
			continue;
		if (at && s->used && p->now - s->seen <= idle)
			continue;
		at = s;
		idle = s->used ? p->now - s->seen : ~0U;
		taken = key + 1;
	}
	if (!at)
		return 0;
	__builtin_memset(at, 0, sizeof(*at));
	at->flow = *f;
	at->window = at->seen = p->now;
	at->used = 1;
	at->host = host;
	return taken;
}

/* The class of a flow that no rule fits, by what it and its source have sent. */
__noinline int ol_prio_watch(const struct ol_prio *p, const struct ol_judged *j, __u64 hash,
			     struct ol_judgement *is)
{
	struct ol_policy *policy = ol_get_policy();
	struct ol_sparse *flow, *source;
	struct ol_flow from;

	if (!p || !j || !is || !policy || !policy->sparse_frames)
		return 0;
	ol_source_of(&j->flow, &from);
	is->sparse = ol_sparse_place(p, &j->flow, j->host, hash, 0);
	is->source = ol_sparse_place(p, &from, j->host, ol_flow_hash(&from, ol_key0, ol_key1), 1);
	flow = ol_at(&ol_sparse_flows, is->sparse - 1);
	source = ol_at(&ol_sparse_flows, is->source - 1);
	if (!flow || !source) {
		is->sparse = 0; /* no place for it */
		return 0;
	}
	is->class = ol_sparse_bounded(flow, source, p->now, policy->sparse_frames,
				      policy->sparse_bytes);
	return 0;
}

/* The first fragment of a datagram tells its class, to itself and to the later ones. Returns the flow, or 0. */
static __always_inline __u64 ol_prio_fragment(const struct ol_prio *p, const struct ol_judged *j,
					      const struct ol_policy *policy,
					      struct ol_judgement *is)
{
	const struct ol_flow *f = &j->flow;
	struct ol_frag *frag = ol_frag_of(f);
	__u32 rule;

	if (!frag)
		return 0;
	if (f->fragment == OL_FRAG_FIRST) {
		rule = ol_rule_of(f, j->host, p->table);
		frag->class = rule & 0xff;
		frag->rule = rule >> 8;
		/* Nothing tells what is in fragments of a tunnel's packets. */
		if (j->host && f->proto == OL_IPPROTO_UDP &&
		    ol_any_tunnel_at(policy, ol_be16((const __u8 *)&f->ports + 2)))
			frag->class = OL_NR_CLASSES;
	}
	is->class = frag->class;
	is->rule = frag->rule;
	return frag->flow;
}

/* Has what the flow sent to a lane left it? */
static __always_inline int ol_prio_left(const struct ol_prio *p, __u32 class, __u64 flow, int gro,
					__u32 **a, __u32 **b)
{
	__u32 key = class * OL_LAST_LISTS * OL_LAST_PLACES + flow % OL_LAST_PLACES;

	*a = bpf_map_lookup_elem(&ol_lasts, &key);
	key = (class * OL_LAST_LISTS + 1) * OL_LAST_PLACES + (flow >> 32) % OL_LAST_PLACES;
	*b = bpf_map_lookup_elem(&ol_lasts, &key);
	if (!*a || !*b)
		return 0; /* cannot be */
	/* Other flows may share a place, hardly both. */
	return ol_lane_left(&p->lane[class], **a, p->now, gro) ||
	       ol_lane_left(&p->lane[class], **b, p->now, gro);
}

/* NTP and PTP over UDP: the NIC's timestamp of a frame, which clocks go by, is lost in a lane. */
static __always_inline int ol_tells_time(const struct ol_flow *f)
{
	__u16 from = ol_be16((const __u8 *)&f->ports), to = ol_be16((const __u8 *)&f->ports + 2);

	return f->proto == OL_IPPROTO_UDP && (from == 123 || to == 123 || to == 319 || to == 320);
}

/* The verdict on a flow's frames until the poll ends, as long as a lane has room. */
__noinline int ol_prio_judge(struct ol_prio *p, struct ol_judged *j, int two)
{
	struct ol_policy *policy = ol_get_policy();
	__u32 *bulk_a, *bulk_b, *latency_a, *latency_b, rule;
	int gro, bulk_left, latency_left;
	struct ol_judgement is = {};
	struct ol_flow *f;
	__u64 flow = 0;

	if (!p || !j || !policy)
		return 0;
	f = &j->flow;
	gro = f->proto == OL_IPPROTO_TCP || p->apart;
	if (f->fragment == OL_FRAG_WHOLE) {
		rule = ol_rule_of(f, j->host, p->table);
		is.class = rule & 0xff;
		is.rule = rule >> 8;
		if (!rule && j->host && ol_tells_time(f)) {
			is.class = OL_NR_CLASSES;
		} else if (!rule && policy->sparse_frames) {
			flow = ol_flow_hash(f, ol_key0, ol_key1);
			ol_prio_watch(p, j, flow, &is);
		}
	} else {
		flow = ol_prio_fragment(p, j, policy, &is);
	}
	j->is = is;
	j->held = j->excess = 0;
	j->verdict = OL_VERDICT_STOCK;
	if (!p->demoted || is.class >= OL_NR_CLASSES)
		return 0;

	if (!flow)
		flow = ol_flow_hash(f, ol_key0, ol_key1);
	bulk_left = ol_prio_left(p, OL_CLASS_BULK, flow, gro, &bulk_a, &bulk_b);
	latency_left = ol_prio_left(p, OL_CLASS_LATENCY, flow, gro, &latency_a, &latency_b);
	if (!bulk_a || !bulk_b || !latency_a || !latency_b)
		return 0; /* cannot be */
	/* What the NIC's GRO holds of a flow would be overtaken in the lane. */
	j->excess = is.class == OL_CLASS_LATENCY && p->over && !(gro && p->holds);
	if (is.class == OL_CLASS_LATENCY && !j->excess) {
		j->held = !bulk_left;
		/* When priority ends its lane is to run empty, however long it goes on. */
		if (bulk_left && (!two || (latency_left && !p->about)))
			return 0;
		j->verdict = bulk_left ? OL_VERDICT_LATENCY_LANE : OL_VERDICT_BULK_LANE;
	} else {
		j->verdict = latency_left ? OL_VERDICT_BULK_LANE : OL_VERDICT_LATENCY_LANE;
	}
	if (j->verdict == OL_VERDICT_LATENCY_LANE)
		*latency_a = *latency_b = p->now;
	else
		*bulk_a = *bulk_b = p->now;
	return 0;
}

/* The frame as one that is in no tunnel. */
__noinline int ol_read_host(struct xdp_md *ctx, struct ol_frame *f)
{
	struct ol_cursor c;

	if (!f)
		return OL_SHORT;
	ol_cursor_at(ctx, &c);
	return ol_parse_inner(&c, 0, 0, &f->flow);
}

/*
 * Behind the verdict on a flow: what takes the stock path may go straight to its pod, what goes
 * to a lane leaves that way once its frames have left the pod's ring, and is bulk on the stock path
 * until then: the pod's GRO may hold some while those of the lane pass by.
 */
__noinline int ol_prio_straight(struct xdp_md *ctx, const struct ol_frame *f, struct ol_judged *j)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), lane = OL_LANE_LOCAL;
	struct ol_policy *policy = ol_get_policy();
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	enum ol_reason r = 0;
	struct ol_slot *s;
	int leave;

	if (!f || !j || !policy || !cpu || f->tunnel >= OL_MAX_TUNNELS)
		return XDP_PASS;

	struct ol_hop h = ol_hop_at(OL_STAGE_NIC, policy, cpu, this_cpu, f->tunnel);

	h.stay = 1;

	j->straight = 0;
	leave = j->verdict != OL_VERDICT_STOCK;
	if (leave)
		h.slot = ol_flow_slot(&f->flow, &r);
	s = leave && !r ? ol_get_slot(this_cpu, OL_STAGE_NIC, h.slot) : NULL;
	if (leave && !s)
		return XDP_PASS;
	if ((leave && s->lane != OL_LANE_EXPRESS) ||
	    ol_express_steer(ctx, policy, &h, f, leave, &lane, &r) != XDP_REDIRECT) {
		if (leave) {
			ol_express_leave(s, h.slot, cpu->now);
			ol_express_forget(h.slot);
		}
		return XDP_PASS;
	}
	j->verdict = OL_VERDICT_STOCK;
	j->straight = 1;
	return XDP_REDIRECT;
}

/* Which class a frame belongs to, and the verdict on it. two: latency has a lane, too. */
static __always_inline int ol_prio_frame(struct xdp_md *ctx, int two)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), class, verdict;
	struct ol_judged *j = ol_at(&ol_judgements, 0);
	struct ol_prio *p = bpf_map_lookup_elem(&ol_prios, &this_cpu);
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	struct ol_policy *policy;
	struct ol_frame f;
	struct ol_cursor c;
	enum ol_reason r;
	int action = XDP_PASS;
	__u8 host = 0;
	__u32 len;

	if (!p || !j || !cpu)
		return XDP_PASS;
	cpu->came++;
	if (ol_unfinished_frame(ctx))
		return XDP_PASS;
	ol_cursor_at(ctx, &c);
	len = bpf_xdp_get_buff_len(ctx);
	if (p->poll == p->polls + 1 && j->poll == p->poll && ol_same_head(&c, &j->head)) {
		if (!j->straight)
			goto known;
		action = ol_express_next(ctx);
		if (action == XDP_REDIRECT)
			goto known;
		ol_cursor_at(ctx, &c);
	}

	policy = ol_get_policy();
	if (!policy)
		return XDP_PASS;
	__builtin_memset(&f, 0, sizeof(f));
	/* Lengths that contradict each other are the stack's to judge. */
	r = ol_read_xdp(ctx, &f, 0);
	if (r) {
		if (r != OL_OUTER_FRAGMENT && (r != OL_NOT_OVERLAY || f.may_concern))
			return XDP_PASS;
		if (ol_read_host(ctx, &f))
			return XDP_PASS;
		host = 1;
	}
	if (p->poll != p->polls + 1)
		ol_prio_begin(p, this_cpu, two);
	if (host && !p->host)
		return XDP_PASS;
	if (j->poll != p->poll || f.flow.fragment != OL_FRAG_WHOLE ||
	    j->flow.fragment != OL_FRAG_WHOLE || j->host != host ||
	    !ol_same_flow(&j->flow, &f.flow) || j->flow.dscp != f.flow.dscp) {
		ol_prio_account(j);
		j->flow = f.flow;
		j->host = host;
		j->poll = p->poll;
		ol_keep_head(&c, &f.flow, host, f.inner, &j->head);
		ol_prio_judge(p, j, two);
	}
	if (policy->flags & OL_F_EXPRESS && !host)
		action = ol_prio_straight(ctx, &f, j);
known:
	class = j->is.class;
	verdict = j->verdict;
	if (class >= OL_NR_CLASSES)
		return action;
	j->frames++;
	j->bytes += len;
	if (class == OL_CLASS_LATENCY) {
		p->seen = p->now;
		p->ever = 1;
		p->brought++;
		p->held += j->held;
		p->excess += j->excess;
	}
	if (verdict == OL_VERDICT_BULK_LANE || verdict == OL_VERDICT_LATENCY_LANE) {
		struct ol_lane_watch *w =
			&p->lane[verdict == OL_VERDICT_BULK_LANE ? OL_CLASS_BULK
								 : OL_CLASS_LATENCY];

		/* A flood of latency's that has used up its share is not to fill bulk's lane. */
		if (w->room >
		    (class == OL_CLASS_LATENCY && verdict == OL_VERDICT_BULK_LANE ? p->reserve : 0))
			w->room--;
		else
			verdict = OL_VERDICT_REFUSED;
	}
	if (verdict < OL_NR_VERDICTS)
		p->frames[class][verdict]++;
	switch (verdict) {
	case OL_VERDICT_BULK_LANE:
		/* The kernel does not cut up what GRO makes of TCP on the way to a socket. */
		if (p->apart && j->flow.proto == OL_IPPROTO_UDP && !j->host)
			ol_put_word(ctx, ol_prio_number(p));
		return bpf_redirect_map(&ol_lane_threads, this_cpu, XDP_PASS);
	case OL_VERDICT_LATENCY_LANE:
		return bpf_redirect_map(&ol_latency_threads, this_cpu, XDP_PASS);
	case OL_VERDICT_REFUSED:
		return XDP_DROP;
	default:
		return action;
	}
}

/* Under a NIC that a thread polls. */
SEC("xdp.frags")
int ol_priority_xdp(struct xdp_md *ctx)
{
	return ol_prio_frame(ctx, 0);
}

/* Under any other. */
SEC("xdp.frags")
int ol_prio_two_xdp(struct xdp_md *ctx)
{
	return ol_prio_frame(ctx, 1);
}

/*
 * Polls end. Behind that of a NIC, what a verdict was based on may have changed. What
 * it handed on is polled next by the same task: that is the time that latency takes.
 */
SEC("tp_btf/napi_poll")
int BPF_PROG(ol_prio_polled, struct napi_struct *napi, int work, int budget)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), task = bpf_get_current_pid_tgid();
	struct ol_prio *p = bpf_map_lookup_elem(&ol_prios, &this_cpu);
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	struct softnet_data *sd;
	__u64 now;

	/* Netpoll's have none, and end nothing. */
	if (!p || !cpu || !budget)
		return 0;
	if (ol_device_of(napi) != OL_MAX_TUNNELS) {
		if (!cpu->softnet && (sd = ol_backlog_of(napi, this_cpu)))
			cpu->softnet = (__u64)sd;
		if (p->task && p->task == task) {
			now = bpf_ktime_get_ns();
			/* A task that a softirq interrupted has done other things since. */
			if (now - p->charged < OL_PRIO_FOLLOWS_NS)
				ol_prio_charge(p, now - p->charged);
			else
				p->task = 0;
			p->charged = now;
		}
		return 0;
	}
	p->task = 0;
	if (p->poll == p->polls + 1 && p->brought) {
		/* A lane's thread, interrupted by a NIC's poll, goes on to poll its own. */
		if (task != cpu->lane_pid[OL_CLASS_BULK])
			p->task = task;
		p->latency = work > 0 && p->brought < work ? p->brought * 256 / work : 256;
		now = bpf_ktime_get_ns();
		ol_prio_charge(p, now - p->now_ns);
		p->charged = now;
	}
	p->polls++;
	p->holds = ol_nic_holds(&p->holding, napi, bpf_ktime_get_ns());
	return 0;
}
