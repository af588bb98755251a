/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Policy and order guard put to work on the maps: which lane does this packet take? */
#ifndef OVERLANE_STEER_H
#define OVERLANE_STEER_H

#include "maps.h"
#include "order.h"
#include "pipeline.h"
#include "ring.h"

/*
 * The functions that are not inlined are global ones: the verifier looks at
 * each once, for any arguments, instead of once for every path that leads there.
 */

/* One packet at one stage, on the core that runs the hook. */
struct ol_hop {
	struct ol_policy *policy;
	struct ol_lanes *lanes;
	struct ol_cpu *cpu;
	__u32 this_cpu;
	__u32 stage;
	__u32 slot;
	__u32 tunnel;  /* index, or OL_NO_CELL */
	__u32 stay;    /* wishes for no lane */
	__u32 again;   /* the flow of the packet before, in the same poll */
	__u32 express; /* the pod's port that the frame may go straight to, plus one, or 0 */
};

/* No GRO cell between the hook and the lane: a packet is in its queue when the poll ends. */
#define OL_NO_CELL OL_MAX_TUNNELS

/* A packet of a tunnel, or behind all cells. Slot and what it wishes for are still to be told. */
static __always_inline struct ol_hop ol_hop_at(__u32 stage, struct ol_policy *policy,
					       struct ol_cpu *cpu, __u32 this_cpu, __u32 tunnel)
{
	int none = tunnel >= OL_MAX_TUNNELS || policy->tunnel[tunnel].no_gro;
	struct ol_hop h = {
		.policy = policy,
		.lanes = &policy->stage[stage],
		.cpu = cpu,
		.this_cpu = this_cpu,
		.stage = stage,
		.tunnel = none ? OL_NO_CELL : tunnel,
	};

	return h;
}

/*
 * Head and tail of a core's backlog. Returns 0 as long as that core has not
 * polled its backlog under our eyes.
 */
static __always_inline int ol_backlog(__u32 cpu, __u32 *head, __u32 *tail)
{
	struct ol_cpu *c = ol_get_cpu(cpu);
	struct softnet_data *sd;

	if (!c || !c->softnet)
		return 0;
	sd = (void *)c->softnet;
	*head = BPF_CORE_READ(sd, input_queue_head);
	*tail = BPF_CORE_READ(sd, input_queue_tail);
	return 1;
}

/* Bounds a lane number where the verifier can see it; the compiler may know more than it. */
static __always_inline __u32 ol_lane_index(__u32 lane)
{
	barrier_var(lane);
	return lane % OL_MAX_LANES;
}

/* Packets that wait for a core as a lane of a stage. */
__noinline __u32 ol_queue_length(__u32 stage, __u32 cpu)
{
	struct ol_ring ring;
	__u32 head, tail;

	if (stage != OL_STAGE_NIC)
		return ol_backlog(cpu, &head, &tail) ? tail - head : 0;
	return ol_get_ring(cpu, OL_CLASS_BULK, &ring) ? ol_ring_from(&ring, ring.consumer) : 0;
}

/* Load of a core as a lane of a stage. */
static __always_inline struct ol_load ol_core_load(const struct ol_policy *policy, __u32 stage,
						   __u32 cpu)
{
	struct ol_load load = {};

	if (cpu >= OL_MAX_CPUS)
		return load;
	load.busy = policy->busy[cpu];
	load.queue = ol_queue_length(stage, cpu);
	return load;
}

/* Of two lanes of a stage: b if it is clearly less loaded, else a. */
__noinline __u32 ol_less_loaded_lane(__u32 stage, __u32 a, __u32 b, __u32 slack)
{
	struct ol_policy *policy = ol_get_policy();
	struct ol_lanes *lanes;
	struct ol_load la, lb;

	if (!policy || stage >= OL_NR_STAGES || a >= OL_MAX_LANES || b >= OL_MAX_LANES || a == b)
		return a;
	lanes = &policy->stage[stage];
	la = ol_core_load(policy, stage, lanes->cpu[ol_lane_index(a)]);
	lb = ol_core_load(policy, stage, lanes->cpu[ol_lane_index(b)]);
	return ol_less_loaded(&lb, &la, slack) ? b : a;
}

/*
 * By when was everything that a core's hook let pass before poll seq handed on
 * to its lanes? 0: not known to be yet.
 */
__noinline __u64 ol_handed_on_by(__u32 cpu, __u32 tunnel, __u32 seq)
{
	struct ol_marks *m;
	struct ol_cpu *c;

	if (tunnel < OL_MAX_TUNNELS) {
		m = ol_get_cell_marks(cpu, tunnel);
		return m ? ol_handed_on(m, seq, bpf_ktime_get_ns()) : 0;
	}
	c = ol_get_cpu(cpu);
	return c ? ol_handed_on(&c->polls, seq, bpf_ktime_get_ns()) : 0;
}

/* Has a core's backlog handled what was handed on to it by `handed`? */
__noinline int ol_backlog_drained(__u32 cpu, __u64 handed)
{
	struct ol_cpu *c = ol_get_cpu(cpu);
	__u32 head, tail;

	if (!c || !ol_backlog(cpu, &head, &tail))
		return 0;
	/* From within this backlog's own poll the queue never looks empty: head follows later. */
	if (cpu == bpf_get_smp_processor_id())
		return head == tail || handed <= c->backlog.safe;
	return ol_queue_drained(&c->backlog, handed, head == tail);
}

/*
 * A lane's thread that has not taken frames for so long is done with those it
 * took: for frames that never got as far as the tunnel's cell.
 */
#define OL_LANE_DONE_NS 200000000

/*
 * Has everything that the slot sent to a cpumap lane before been handed on by
 * its core? Its ring was emptied, which flushes its GRO, and a poll of the
 * tunnel's cell after that found the cell empty.
 */
static __always_inline int ol_ring_left(__u32 this_cpu, __u32 cpu, __u32 tunnel, __u32 seq,
					int backlog)
{
	struct ol_cpu *c = ol_get_cpu(cpu);
	struct ol_ring ring;
	struct ol_marks *m;
	__u64 handed;

	/* The ring is filled when the poll ends in which the frame was redirected. */
	if (!c || !ol_handed_on_by(this_cpu, OL_NO_CELL, seq))
		return 0;
	/*
	 * As far as the thread has told: what it has only just taken is in its hands.
	 * A thread that was driven off its core tells nothing, but sleeps when it is done.
	 */
	if (!ol_get_ring(cpu, OL_CLASS_BULK, &ring) ||
	    (ol_ring_from(&ring, OL_READ(c->lane_head)) &&
	     (!ring.asleep || ol_ring_from(&ring, ring.consumer))))
		return 0;
	if (tunnel < OL_MAX_TUNNELS) {
		m = ol_get_cell_marks(cpu, tunnel);
		if (m && ol_handed_on(m, OL_READ(c->lane_seq), bpf_ktime_get_ns()))
			return 1;
	} else if (backlog) {
		/* Without a cell, its thread's frames wait in its backlog. */
		handed = ol_handed_on(&c->polls, OL_READ(c->lane_seq), bpf_ktime_get_ns());
		if (handed && ol_backlog_drained(cpu, handed))
			return 1;
	}
	/* The time of our last poll may be long ago, or before. */
	return (__s64)(bpf_ktime_get_ns() - OL_READ(c->lane_time)) > OL_LANE_DONE_NS;
}

__noinline int ol_ring_drained(__u32 this_cpu, __u32 cpu, __u32 tunnel, __u32 seq)
{
	return ol_ring_left(this_cpu, cpu, tunnel, seq, 1);
}

/* The same for a branch, which is asked so deep in calls that the stack has no more room. */
__noinline int ol_branch_ring_drained(__u32 this_cpu, __u32 cpu, __u32 tunnel, __u32 seq)
{
	return ol_ring_left(this_cpu, cpu, tunnel, seq, 0);
}

/* As ol_handed_on_by(), of what a core let pass to the NIC's GRO. */
__noinline __u64 ol_passed_on_by(__u32 cpu, __u32 tunnel, __u32 seq)
{
	struct ol_cpu *c = ol_get_cpu(cpu);
	struct ol_marks *m;

	if (!c)
		return 0;
	/* Without a cell, the NIC's GRO leads straight to this core's backlog. */
	m = tunnel < OL_MAX_TUNNELS ? ol_get_cell_marks(cpu, tunnel) : &c->polls;
	return m ? ol_handed_on_nic(m, seq, bpf_ktime_get_ns()) : 0;
}

/* Has everything that the slot let pass to the NIC's GRO been handed on, and handled here? */
__noinline int ol_pass_drained(__u32 this_cpu, __u32 tunnel, __u32 seq)
{
	__u64 handed = ol_passed_on_by(this_cpu, tunnel, seq);

	return handed && ol_backlog_drained(this_cpu, handed);
}

/*
 * A core that sends all the time finds the queue that it fills busy with what it sent just
 * before, whenever it looks. So cores whose flows are to leave a queue stand still for a moment: all
 * at the same time by the clock, in which queues become empty, and for a twentieth of the time at most.
 */
#define OL_AWAIT_NS 1000000
#define OL_AWAIT_EVERY_NS 20000000
#define OL_AWAIT_STEPS 65536

/* Until when may this core stand still for another one's queue? 0: not at all. */
static __always_inline __u64 ol_await_until(struct ol_cpu *me, struct ol_cpu *to)
{
	__u64 now = bpf_ktime_get_ns(), begun = now % OL_AWAIT_EVERY_NS, until;

	/* A core for which others stand still has to go on: it may be this one that it waits for. */
	if (!me || !to || me == to || begun >= OL_AWAIT_NS || OL_READ(me->awaited_until) > now)
		return 0;
	until = now - begun + OL_AWAIT_NS;
	OL_WRITE(to->awaited_until, until);
	return until;
}

/* Does this core go on? */
static __always_inline int ol_await_over(__u64 until)
{
	struct ol_cpu *me = ol_get_cpu(bpf_get_smp_processor_id());
	__u64 now = bpf_ktime_get_ns();

	return now > until || !me || OL_READ(me->awaited_until) > now;
}

struct ol_await {
	__u64 until;
	__u64 handed;
	__u32 core;
	__u32 done;
};

static long ol_await_backlog(__u64 i, struct ol_await *a)
{
	a->done = ol_backlog_drained(a->core, a->handed);
	return a->done || ol_await_over(a->until);
}

/* As ol_backlog_drained(), after a moment if need be. */
__noinline int ol_backlog_awaited(__u32 core, __u64 handed)
{
	struct ol_await a = {.core = core, .handed = handed};

	a.until = ol_await_until(ol_get_cpu(bpf_get_smp_processor_id()), ol_get_cpu(core));
	if (!a.until)
		return 0;
	bpf_loop(OL_AWAIT_STEPS, ol_await_backlog, &a, 0);
	return a.done;
}

/* What a slot's turns count in, above its lane. */
#define OL_TURN 0x100

static __always_inline __u32 ol_turn_lane(__u64 turn)
{
	return (turn - 1) & 0xff;
}

static __always_inline __u64 ol_next_turn(__u64 turn, __u32 lane)
{
	return (turn & -OL_TURN) + OL_TURN + ((lane + 1) & 0xff);
}

/* The last bits of a clock that comes round after 18 minutes, in 16.8 ms. */
#define OL_TICK_SHIFT 24

static __always_inline __u16 ol_tick(void)
{
	return bpf_ktime_get_coarse_ns() >> OL_TICK_SHIFT;
}

/* Is a tick no more than some 50 ms ago? */
static __always_inline int ol_soon(__u16 tick)
{
	return (__u16)(ol_tick() - tick) <= 3;
}

/*
 * What a core sent of a slot so long ago, and cannot tell of any more, is no concern. By its clock it
 * may have sent it only just after now.
 */
static __always_inline int ol_sent_long_ago(const struct ol_slot *s)
{
	__u16 slack = 60;

	return (__u16)(ol_tick() - OL_READ(s->at) + slack) >
	       (OL_LANE_DONE_NS >> OL_TICK_SHIFT) + 1 + slack;
}

/*
 * Has a core's backlog handled what another one sent of the slot and handed on by `handed`? Where the
 * backlog is, a core knows from its first poll: without one, nothing came there.
 */
static __always_inline int ol_left_backlog(const struct ol_slot *s, __u32 core, __u64 handed)
{
	struct ol_cpu *c = ol_get_cpu(core);

	return c && !c->softnet ? ol_sent_long_ago(s) : ol_backlog_drained(core, handed);
}

/*
 * Lanes are only replaced once all flows are drained: a slot that still names one
 * that is no more has left it.
 */
static __always_inline __u32 ol_known_lane(const struct ol_policy *policy, __u32 stage, __u64 turn)
{
	__u32 lane = ol_turn_lane(turn);

	if (lane == OL_LANE_EXPRESS && stage == OL_STAGE_NIC)
		return lane;
	return lane < policy->stage[stage].nr ? lane : OL_LANE_LOCAL;
}

struct ol_pods {
	__u32 slot;
	__u32 left; /* cores whose backlogs have */
};

static long ol_pod_left_core(__u64 core, struct ol_pods *p)
{
	struct ol_slot *s = ol_get_slot(core, OL_STAGE_POD, p->slot);
	__u64 handed;

	if (s && OL_READ(s->used)) {
		handed = ol_handed_on_by(core, OL_NO_CELL, OL_READ(s->seq));
		if (handed ? !ol_left_backlog(s, core, handed) : !ol_sent_long_ago(s))
			return 1;
	}
	p->left++;
	return 0;
}

/*
 * A pod hop without a lane waits in the backlog of the core that runs the hook.
 * When an earlier stage moves the hook to another core, so does that queue: have
 * they handled what the slot left there? What the core that is its lane has sent itself waits there,
 * too, and may be without a lane at any time: ol_core_left() asks for nothing where the queue stays the same.
 */
__noinline int ol_pod_left(__u32 slot)
{
	struct ol_turn *t = ol_get_turn(OL_STAGE_POD, slot);
	struct ol_policy *policy = ol_get_policy();
	struct ol_pods p = {.slot = slot};
	struct ol_slot *s;
	__u32 lane, core;

	if (!t || !policy)
		return 0;
	lane = ol_known_lane(policy, OL_STAGE_POD, OL_READ(t->turn));
	if (lane < OL_MAX_LANES) {
		core = policy->stage[OL_STAGE_POD].cpu[ol_lane_index(lane)];
		s = ol_get_slot(core, OL_STAGE_POD, slot);
		/* Of what was sent long ago, the marks that are left tell a later time. */
		return !s || ol_sent_long_ago(s) || !ol_pod_left_core(core, &p);
	}
	bpf_loop(ol_nr_cpus, ol_pod_left_core, &p, 0);
	return p.left >= ol_nr_cpus;
}

/* Has everything been handled that was handed to a pod straight from the NIC by `handed`? */
__noinline int ol_port_drained(__u32 port, __u64 handed)
{
	struct ol_port *p = bpf_map_lookup_elem(&ol_ports, &port);
	struct napi_struct *napi;

	if (!p || !p->napi || !handed)
		return 0;
	napi = (void *)p->napi;
	/* What is put into the ring schedules its poll, which ends once the ring is empty. */
	if (!(BPF_CORE_READ(napi, state) & OL_NAPI_SCHED))
		return 1;
	return handed + OL_CLOCK_SLACK_NS <= OL_READ(p->safe);
}

/*
 * Has everything been handled that the slot sent through the stages behind the NIC's, on
 * whatever lanes? Nothing of it is on its way there any more. tunnel: as in a hop.
 */
__noinline int ol_behind_left(__u32 slot, __u32 tunnel)
{
	struct ol_owner *o = bpf_map_lookup_elem(&ol_owners, &slot);
	struct ol_policy *policy = ol_get_policy();
	__u32 stage, owner, cpu, lane;
	struct ol_slot *s;
	struct ol_cpu *c;
	__u64 handed;

	if (!o || !policy)
		return 0;
	for (stage = OL_STAGE_TUNNEL; stage < OL_NR_STAGES; stage++) {
		if (!o->cpu[stage])
			continue;
		owner = o->cpu[stage] - 1;
		s = ol_get_slot(owner, stage, slot);
		c = ol_get_cpu(owner);
		if (!s || !c)
			return 0;
		handed = ol_handed_on_by(owner, stage == OL_STAGE_TUNNEL ? tunnel : OL_NO_CELL,
					 s->seq);
		/* A core that has not polled for so long has nothing to hand on. */
		if (!handed && (__s64)(bpf_ktime_get_ns() - OL_READ(c->now)) < OL_LANE_DONE_NS)
			return 0;
		lane = s->lane;
		cpu = lane < OL_MAX_LANES ? policy->stage[stage].cpu[ol_lane_index(lane)] : owner;
		if (handed && !ol_backlog_drained(cpu, handed))
			return 0;
	}
	return 1;
}

/* The core whose queue a slot's packets take, on a lane or on none. */
static __always_inline __u32 ol_queue_core(const struct ol_hop *h, __u32 lane)
{
	return lane < OL_MAX_LANES ? h->lanes->cpu[ol_lane_index(lane)] : h->this_cpu;
}

/*
 * What becomes of a slot, whose first packet in a poll this is. Not on the stack, which has no room
 * for it.
 */
struct ol_change {
	__u64 seen;   /* the slot's turn */
	__u64 handed; /* ns, when all that it sent was handed on; 0: as the marks tell */
	__u64 until;  /* ns, until when this core stands still for it; 0: it does not */
	__u32 stage;
	__u32 slot;
	__u32 tunnel; /* as in a hop */
	__u32 lane;   /* that it has ... */
	__u32 wish;   /* ... and is to have */
	__u32 queue;  /* the core of the one that it has */
	__u32 step;   /* cores that have been looked at, from this one on ... */
	__u32 cores;  /* ... of so many */
	__u8 leaves;  /* it has to leave its lane */
	__u8 waits;   /* this core may stand still for that */
	__u8 left;    /* all that it sent has left its lane */
	__u8 pad[5];
};

OL_MAP(PERCPU_ARRAY, ol_changes, 1, __u32, struct ol_change);

static __always_inline struct ol_change *ol_get_change(void)
{
	return ol_at(&ol_changes, 0);
}

/* Of a change: is all handed on yet? */
#define OL_ASK_HANDED (~0ULL)

/* Has what a core sent of the slot left its lane? Below 0: it will not while this core stands still. */
static __always_inline int ol_core_left(const struct ol_change *c, __u32 core)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), stage = c->stage, lane = c->lane;
	struct ol_slot *s = ol_get_slot(core, stage, c->slot);
	struct ol_policy *policy = ol_get_policy();
	__u32 seq, tunnel = c->tunnel, queue;
	const struct ol_lanes *lanes;
	__u64 handed;

	if (!s || !OL_READ(s->used))
		return 1;
	if (!policy || stage >= OL_NR_STAGES)
		return 0;
	seq = OL_READ(s->seq);
	if (stage != OL_STAGE_NIC)
		handed = ol_handed_on_by(core, tunnel, seq);
	else if (lane == OL_LANE_LOCAL)
		/* Nothing tells of a packet that was dropped on its way to the tunnel's cell. */
		handed = ol_passed_on_by(core, tunnel, seq);
	else
		/* Frames for a lane pass no cell there. */
		handed = ol_handed_on_by(core, OL_NO_CELL, seq);
	if (!handed)
		return core == this_cpu ? -1 : ol_sent_long_ago(s);
	if (c->handed == OL_ASK_HANDED)
		return 1;
	lanes = &policy->stage[stage];
	queue = lane < OL_MAX_LANES ? c->queue : core;
	if (stage == OL_STAGE_NIC) {
		if (lane == OL_LANE_EXPRESS)
			return ol_port_drained(s->port, handed);
		return lane < OL_MAX_LANES ? ol_ring_drained(core, queue, c->tunnel, seq)
					   : ol_left_backlog(s, core, handed);
	}
	/* A pod's packets without a lane wait in this core's backlog, as do those of its lane. */
	if (stage == OL_STAGE_POD && core == this_cpu &&
	    queue == (c->wish < OL_MAX_LANES ? lanes->cpu[ol_lane_index(c->wish)] : core))
		return 1;
	if (c->handed)
		handed = c->handed;
	else if (core != this_cpu)
		handed += OL_CLOCK_SLACK_NS;
	return ol_left_backlog(s, queue, handed);
}

/* Looks at one core, or once more at one that was not through. */
static long ol_change_step(__u64 i, void *none)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), core;
	struct ol_change *c = ol_get_change();
	int left;

	if (!c)
		return 1;
	core = this_cpu + c->step;
	if (core >= ol_nr_cpus)
		core -= ol_nr_cpus;
	if (c->step < c->cores) {
		left = ol_core_left(c, core);
		if (left > 0) {
			c->step++;
			return 0;
		}
		if (left < 0)
			return 1;
	} else if (c->handed == OL_ASK_HANDED || c->stage == OL_STAGE_POD ||
		   (ol_pod_left(c->slot) &&
		    (c->wish != OL_LANE_EXPRESS || ol_behind_left(c->slot, c->tunnel)))) {
		c->left = 1;
		return 1;
	}
	if (!c->until && c->waits)
		c->until = ol_await_until(ol_get_cpu(this_cpu), ol_get_cpu(c->queue));
	return !c->until || ol_await_over(c->until);
}

/*
 * The order guard: has everything that the slot sent before left its lane, on whatever cores it
 * came, so that it may go on on another one?
 */
__noinline int ol_slot_left(void)
{
	struct ol_change *c = ol_get_change();

	if (!c)
		return 0;
#ifdef OL_MUTANT_NO_GUARD
	c->left = 1;
#else
	bpf_loop(OL_AWAIT_STEPS, ol_change_step, NULL, 0);
#endif
	return 0;
}

/* A core that is being taken offline says so well before it takes no more work. */
static __always_inline int ol_lane_leaves(const struct ol_hop *h, __u32 lane)
{
	struct ol_leave *leave;
	__u32 cpu;

	if (lane >= OL_MAX_LANES)
		return 0;
	cpu = h->lanes->cpu[ol_lane_index(lane)];
	leave = bpf_map_lookup_elem(&ol_leaves, &cpu);
	return leave && OL_READ(leave->leaving);
}

/*
 * A flow that is to leave its lane, and has not been seen to have left it for so long, in which
 * the lane has dropped packets, sends no more to it until it has: else it would stay for as long
 * as the lane is full. Where the lane is only busy, the sending core stands still (ol_slot_left).
 */
#define OL_HELD_MOST_US 10000
/* A lane that does not show its end for so long has the flow back, and keeps it for a while. */
#define OL_REFUSED_MOST_US 200000
#define OL_REFUSED_PAUSE_US 1000000

/* The last bits of how many packets a core has dropped as a lane of a stage. */
__noinline __u32 ol_lane_lost(__u32 stage, __u32 cpu)
{
	struct ol_cpu *c = ol_get_cpu(cpu);
	struct softnet_data___new *n;
	struct softnet_data *sd;

	if (!c)
		return 0;
	if (stage == OL_STAGE_NIC)
		return OL_READ(c->lane_lost) & 0xffff;
	if (!c->softnet)
		return 0;
	sd = (void *)c->softnet;
	n = (void *)sd;
	if (bpf_core_field_exists(n->drop_counters))
		return (BPF_CORE_READ(n, drop_counters.drops0.counter) +
			BPF_CORE_READ(n, drop_counters.drops1.counter)) &
		       0xffff;
	return BPF_CORE_READ(sd, dropped.counter) & 0xffff;
}

/* Does a slot have to leave its lane, so that something may be done for that? */
static __always_inline int ol_has_to_leave(const struct ol_hop *h, const struct ol_slot *s,
					   __u32 wish)
{
	__u32 lane = s->lane;

	if (lane == OL_LANE_EXPRESS || wish == OL_LANE_EXPRESS)
		return 0;
	if (lane >= OL_MAX_LANES)
		return h->stage != OL_STAGE_NIC;
	/* From one of its lanes to the other it changes when it costs nothing. */
	return wish >= OL_MAX_LANES || h->lanes->instead[ol_lane_index(lane)] != lane ||
	       ol_lane_leaves(h, lane);
}

/* A slot has not left its lane. Is this packet to be dropped, so that it will? */
static __always_inline int ol_refuses(const struct ol_change *c, struct ol_slot *s)
{
	__u32 now = bpf_ktime_get_ns() / 1000, lost;
	__s32 held = now - s->held;

	if (!c->leaves) {
		s->held = s->refuses = 0;
		return 0;
	}
	if (s->refuses) {
		if (held < OL_REFUSED_MOST_US)
			return 1;
		s->refuses = 0;
		s->held = (now + OL_REFUSED_PAUSE_US) | 1;
		return 0;
	}
	if (s->held && held < OL_HELD_MOST_US)
		return 0;
	lost = ol_lane_lost(c->stage, c->queue);
	s->refuses = s->held && lost != s->lost;
	s->held = now | 1;
	s->lost = lost;
	if (s->refuses)
		s->since = 0;
	return s->refuses;
}

/* A flow that left its express entry, or is new, takes the full path for so long. */
#define OL_EXPRESS_PAUSE_NS 100000000

/* Has the daemon been silent for too long to take back what it should? Then flows drain. */
static __always_inline int ol_unwatched(const struct ol_policy *policy, __u64 now)
{
	__u64 heartbeat = OL_READ(policy->heartbeat);

	return heartbeat && (__s64)(now - heartbeat) > (__s64)OL_WATCHDOG_MS * 1000000;
}

static __always_inline int ol_core_steers(const struct ol_hop *h)
{
	return h->this_cpu < OL_MAX_CPUS && h->policy->core_flags[h->this_cpu] & (1U << h->stage);
}

/*
 * Does this core send the slot to lanes? If it is on one for the sake of another core, which sends of
 * it, too: it would be taken back at once.
 */
static __always_inline int ol_steers(const struct ol_hop *h, const struct ol_slot *s,
				     const struct ol_turn *t)
{
	return ol_core_steers(h) || (s->lane < OL_MAX_LANES && ol_soon(OL_READ(t->met)));
}

/* The lane that the policy wishes for the slot. */
static __always_inline __u32 ol_wish(const struct ol_hop *h, const struct ol_slot *s,
				     const struct ol_turn *t)
{
	__u32 nr = h->lanes->nr, lane = s->lane, c1, c2;

	if (ol_unwatched(h->policy, h->cpu->now))
		return OL_LANE_LOCAL;
	if (h->express && !s->due &&
	    (lane == OL_LANE_EXPRESS ? s->port == OL_NO_PORT || s->port + 1U == h->express
				     : (__s64)(h->cpu->now - s->since) > OL_EXPRESS_PAUSE_NS))
		return OL_LANE_EXPRESS;
	if (h->stay || !nr || nr > OL_MAX_LANES || !ol_steers(h, s, t))
		return OL_LANE_LOCAL;
	ol_candidates(h->slot, h->stage, nr, &c1, &c2);
	c1 = h->lanes->instead[ol_lane_index(c1)];
	c2 = h->lanes->instead[ol_lane_index(c2)];
	if (ol_lane_leaves(h, c1))
		c1 = c2;
	if (ol_lane_leaves(h, c1))
		return OL_LANE_LOCAL;
	if (ol_lane_leaves(h, c2))
		c2 = c1;
	if (h->policy->flags & OL_F_RESTEER) {
		if (lane == OL_LANE_LOCAL)
			return c1;
		return lane == c1 && c2 != c1 ? c2 : OL_LANE_LOCAL;
	}
	/* A flow that has one of its lanes keeps it until that one fills. */
	if (lane == c1)
		return ol_less_loaded_lane(h->stage, c1, c2, h->policy->rebalance_queue);
	if (lane == c2)
		return ol_less_loaded_lane(h->stage, c2, c1, h->policy->rebalance_queue);
	return ol_less_loaded_lane(h->stage, c1, c2, 32);
}

/* The lane of a stage that is a core, or OL_LANE_LOCAL. */
__noinline __u32 ol_lane_of(__u32 stage, __u32 cpu)
{
	struct ol_policy *policy = ol_get_policy();
	__u32 i;

	if (!policy || stage >= OL_NR_STAGES)
		return OL_LANE_LOCAL;
	for (i = 0; i < OL_MAX_LANES && i < policy->stage[stage].nr; i++)
		if (policy->stage[stage].cpu[i] == cpu)
			return i;
	return OL_LANE_LOCAL;
}

/* The branches of flows that a core polls. */
static __always_inline struct ol_set *ol_get_set(struct ol_policy *policy, __u32 cpu)
{
	__u32 set = cpu < OL_MAX_CPUS ? policy->set_of[cpu] : 0;

	barrier_var(set);
	return &policy->set[set % OL_SETS];
}

/* The lane that is a branch of them, or OL_LANE_LOCAL. */
static __always_inline __u32 ol_branch_lane(struct ol_policy *policy, __u32 cpu, __u32 branch)
{
	struct ol_set *set = ol_get_set(policy, cpu);

	return branch < OL_BRANCHES && branch < set->nr ? set->lane[branch] : OL_LANE_LOCAL;
}

/* The branch that a lane is, or OL_LANE_LOCAL. */
static __always_inline __u32 ol_lane_branch(const struct ol_policy *policy, __u32 lane)
{
	return lane < OL_MAX_LANES ? policy->branch[lane] : OL_LANE_LOCAL;
}

/* Other cores have sent of the slot: what they know of it goes for this one, too. */
static __always_inline void ol_adopt(const struct ol_hop *h, struct ol_slot *s, struct ol_turn *t,
				     __u32 prev)
{
	struct ol_slot *p = ol_get_slot(prev, h->stage, h->slot);

	s->shared = 1;
	if (s->used && ol_soon(s->at) && ol_core_steers(h))
		OL_WRITE(t->met, ol_tick());
	/* Not the time of the last poll, which may be long ago. */
	s->since = s->refuses ? 0 : bpf_ktime_get_ns();
	if (!p || prev == h->this_cpu)
		return;
	s->port = p->port;
	s->due = p->due;
	s->epoch = p->epoch;
	ol_count(OL_CNT_ADOPTED, 1);
}

/* What is the slot to do that this packet is of? */
__noinline int ol_choose(__u32 stage, __u32 slot, __u32 tunnel, __u32 stay, __u32 express)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), lane;
	struct ol_owner *o = bpf_map_lookup_elem(&ol_owners, &slot);
	struct ol_slot *s = ol_get_slot(this_cpu, stage, slot);
	struct ol_turn *t = ol_get_turn(stage, slot);
	struct ol_policy *policy = ol_get_policy();
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	struct ol_change *c = ol_get_change();
	__u64 seen;

	if (!s || !o || !t || !policy || !cpu || !c || stage >= OL_NR_STAGES)
		return 0;

	struct ol_hop h = ol_hop_at(stage, policy, cpu, this_cpu, OL_NO_CELL);

	h.slot = slot;
	h.stay = stay;
	h.express = express;
	seen = OL_READ(t->turn);
	c->seen = seen;
	lane = ol_known_lane(policy, stage, seen);
	if (lane != s->lane)
		s->held = s->refuses = 0;
	s->lane = lane;
	if (seen < OL_TURN) {
		/* No core had it yet. */
		s->since = cpu->now;
		s->epoch = policy->express_epoch;
	} else if (s->turn != (__u32)(seen / OL_TURN)) {
		ol_adopt(&h, s, t, o->cpu[stage] - 1);
		s->turn = seen / OL_TURN;
	}
	/* No program has seen which path its packets took before. */
	if (express && s->epoch != (__u8)policy->express_epoch) {
		s->epoch = policy->express_epoch;
		s->since = cpu->now;
		if (lane == OL_LANE_EXPRESS)
			s->lane = OL_LANE_LOCAL;
	}
	c->stage = stage;
	c->slot = slot;
	c->tunnel = tunnel;
	c->lane = s->lane;
	c->queue = ol_queue_core(&h, s->lane);
	c->wish = ol_wish(&h, s, t);
	c->leaves = ol_has_to_leave(&h, s, c->wish);
	c->cores = s->shared ? ol_nr_cpus : 1;
	c->step = c->left = 0;
	/* A slot is held on its lane: it is given a moment to leave it. */
	c->waits = c->leaves && s->held && !s->refuses && c->queue != this_cpu;
	c->until = c->handed = 0;
	/* Marks are kept for less time than a full queue takes. */
	if (s->refuses && stage != OL_STAGE_NIC)
		c->handed = s->since ? s->since : OL_ASK_HANDED;
	return c->wish != s->lane;
}

/*
 * Takes the slot's turn, and with it a lane: the one that it has been proved to be free to take, if
 * no other core took a turn since, or else the one that the slot has. In this order: a core that
 * looks at the turn, and then at what others have sent, sees all that was sent with earlier turns.
 */
__noinline __u32 ol_go_on(void)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), me = this_cpu + 1, stage, changes, to;
	struct ol_policy *policy = ol_get_policy();
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	struct ol_change *c = ol_get_change();
	struct ol_owner *o;
	struct ol_slot *s;
	struct ol_turn *t;
	__u64 next;

	if (!c || !policy || !cpu)
		return OL_LANE_LOCAL;
	stage = c->stage;
	if (stage >= OL_NR_STAGES)
		return OL_LANE_LOCAL;
	s = ol_get_slot(this_cpu, stage, c->slot);
	o = bpf_map_lookup_elem(&ol_owners, &c->slot);
	t = ol_get_turn(stage, c->slot);
	if (!s || !o || !t)
		return OL_LANE_LOCAL;
	changes = c->wish != c->lane && c->left && c->handed != OL_ASK_HANDED;
	if (c->left && c->handed == OL_ASK_HANDED)
		s->since = bpf_ktime_get_ns();
	if (c->wish == c->lane) {
		s->held = s->refuses = 0;
	} else if (!changes) {
		if (ol_refuses(c, s))
			return OL_LANE_REFUSED;
		ol_count(OL_CNT_LANE_HELD, 1);
	}
	OL_WRITE(s->at, ol_tick());
	OL_WRITE(s->seq, cpu->seq);
	OL_WRITE(s->used, 1);
	to = changes ? c->wish : c->lane;
	next = ol_next_turn(c->seen, to);
	if (ol_turn_lane(c->seen) != to &&
	    __sync_val_compare_and_swap(&t->turn, c->seen, next) == c->seen) {
		s->lane = to;
		s->turn = next / OL_TURN;
		if (changes) {
			s->port = OL_NO_PORT;
			s->since = cpu->now;
			s->held = s->refuses = s->shared = 0;
		}
		if (changes && c->seen >= OL_TURN)
			ol_count(OL_CNT_LANE_CHANGES, 1);
	} else {
		next = __sync_fetch_and_add(&t->turn, OL_TURN);
		if (next == c->seen)
			s->turn = next / OL_TURN + 1;
		to = ol_known_lane(policy, stage, next);
		if (to != s->lane) {
			/* Another core had it change. */
			s->held = s->refuses = 0;
			s->port = OL_NO_PORT;
		}
		s->lane = to;
	}
	if (o->cpu[stage] != me)
		o->cpu[stage] = me;
	return to;
}

/*
 * The lane for the next packet of a slot. Wishes and the guard are looked at
 * once in a poll: within one, nothing that the slot sent can have drained. OL_LANE_REFUSED: the
 * packet is to be dropped. Several functions: the hooks have no room on the stack for them at once.
 */
static __always_inline __u32 ol_steer(const struct ol_hop *h)
{
	struct ol_slot *s = ol_get_slot(h->this_cpu, h->stage, h->slot);

	if (!s)
		return OL_LANE_LOCAL;
	if (s->used && s->seq == h->cpu->seq)
		return s->lane;
	if (ol_choose(h->stage, h->slot, h->tunnel, h->stay, h->express))
		ol_slot_left();
	return ol_go_on();
}

static __always_inline int ol_any_tunnel_at(const struct ol_policy *policy, __u16 port)
{
	__u32 i;

	for (i = 0; i < OL_MAX_TUNNELS && i < policy->nr_tunnels; i++)
		if (policy->tunnel[i].kind && policy->tunnel[i].port == port)
			return 1;
	return 0;
}

/* The tunnel of a VNI, or else one that takes all of them, or OL_MAX_TUNNELS. */
static __always_inline __u32 ol_find_tunnel(const struct ol_policy *policy,
					    const struct ol_outer *outer, __u32 vni)
{
	__u32 i, any = OL_MAX_TUNNELS;

	for (i = 0; i < OL_MAX_TUNNELS && i < policy->nr_tunnels; i++) {
		if (policy->tunnel[i].port != outer->port)
			continue;
		/* Two devices may share port and VNI, one for each IP version. */
		if (policy->tunnel[i].outer && policy->tunnel[i].outer != outer->version)
			continue;
		if (policy->tunnel[i].vni == vni)
			return i;
		if (policy->tunnel[i].vni == OL_VNI_ANY)
			any = i;
	}
	return any;
}

/* What was read of a frame; all of it is zero before. */
struct ol_frame {
	struct ol_flow flow;
	__u32 tunnel;	  /* its index, or OL_MAX_TUNNELS */
	__u32 inner;	  /* where the inner frame begins */
	__u8 may_concern; /* not understood, it could still end in a tunnel */
	__u8 pad[3];
};

/*
 * What is this frame, and for which of our tunnels? For functions that the verifier
 * looks at once: a hook would be followed to its end for each way through the headers.
 */
static __always_inline enum ol_reason
ol_classify(const struct ol_cursor *c, const struct ol_policy *policy, struct ol_frame *f)
{
	struct ol_outer outer = {};
	enum ol_reason r;
	__u32 vni, inner, tunnel;

	f->tunnel = OL_MAX_TUNNELS;
	r = ol_parse_outer(c, &outer, &f->may_concern);
	if (r)
		return r;
	if (!ol_any_tunnel_at(policy, outer.port)) {
		f->may_concern = 0;
		return OL_NOT_OVERLAY;
	}
	r = ol_parse_vni(c, &outer, &vni);
	if (r)
		return r;
	f->tunnel = ol_find_tunnel(policy, &outer, vni);
	/* Read back, it is any tunnel to the verifier, which else looks at what follows once for each. */
	tunnel = OL_READ(f->tunnel);
	if (tunnel >= OL_MAX_TUNNELS)
		return OL_NOT_OVERLAY;
	r = ol_parse_tunnel(c, &outer, policy->tunnel[tunnel].kind, &inner);
	if (r)
		return r;
	f->inner = inner;
	return ol_parse_inner(c, inner, vni, &f->flow);
}

/*
 * What is remembered of a fragment's datagram since its first fragment, which names the flow. NULL: that
 * was not seen. What another hook on this core has remembered of the same datagram stays.
 */
static __always_inline struct ol_frag *ol_frag_of(const struct ol_flow *f)
{
	__u64 datagram = ol_fragment_hash(f, ol_key0, ol_key1), flow;
	struct ol_frag *frag = ol_at(&ol_frags, datagram >> 32 & (OL_FRAGS - 1));

	if (!frag)
		return NULL;
	if (f->fragment == OL_FRAG_FIRST) {
		flow = ol_flow_hash(f, ol_key0, ol_key1);
		if (frag->datagram != datagram || frag->flow != flow)
			*frag = (struct ol_frag){.datagram = datagram, .flow = flow};
	}
	return frag->datagram == datagram ? frag : NULL;
}

/* The slot of an inner flow; *reason tells of a fragment that names none. */
static __always_inline __u32 ol_flow_slot(const struct ol_flow *f, enum ol_reason *reason)
{
	struct ol_frag *frag;

	if (f->fragment == OL_FRAG_WHOLE)
		return ol_flow_hash(f, ol_key0, ol_key1) % OL_SLOTS;
	frag = ol_frag_of(f);
	if (frag)
		return frag->flow % OL_SLOTS;
	*reason = OL_FRAGMENT_UNTRACKED;
	return 0;
}

/*
 * The lane for the next packet of a flow. Within a poll no slot changes its lane,
 * and packets of one flow come in runs: the next of a run takes what the first got.
 */
static __always_inline __u32 ol_steer_flow(struct ol_hop *h, const struct ol_flow *flow,
					   enum ol_reason *reason)
{
	__u32 stage = h->stage, lane;
	struct ol_recent *last = bpf_map_lookup_elem(&ol_recents, &stage);

	if (!last)
		return OL_LANE_LOCAL;
	if (last->seq == h->cpu->seq && flow->fragment == OL_FRAG_WHOLE &&
	    ol_same_flow(&last->flow, flow)) {
		h->slot = last->slot;
		h->again = 1;
		return last->lane;
	}
	h->slot = ol_flow_slot(flow, reason);
	if (*reason)
		return OL_LANE_LOCAL;
	lane = ol_steer(h);
	if (flow->fragment == OL_FRAG_WHOLE) {
		last->flow = *flow;
		last->seq = h->cpu->seq;
		last->slot = h->slot;
		last->lane = lane;
		last->place = OL_NO_PLACE;
	}
	return lane;
}

#endif
