// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Read-only tracing: it watches polls end, and from that knows what the order
 * guard needs (what has been handed on, how far a queue is) and what a stage
 * costs.
 */
#include "kernel.h"
#include "napi.h"
#include "steer.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define SCHED_IDLE 5
#define PF_KTHREAD 0x00200000

/* A cell's poll ended: is everything that was in it handed on? */
static __always_inline void ol_cell_polled(struct napi_struct *napi, __u32 this_cpu, int tunnel,
					   __u32 seq, __u32 nic_seq, __u64 now, int full)
{
	struct gro_cell *cell = (void *)napi - bpf_core_field_offset(struct gro_cell, napi);
	struct ol_marks *m = ol_get_cell_marks(this_cpu, tunnel);

	if (!m)
		return;
	m->napi = (__u64)napi;
	if (BPF_CORE_READ(cell, napi_skbs.qlen) || ol_gro_holds(napi))
		return;
	if (!full) {
		ol_mark_add(m, seq, nic_seq, now);
	} else {
		/*
		 * After a poll with nothing of its budget left, __napi_poll()
		 * hands the last batch on only behind this tracepoint: by the
		 * next poll of this core it has.
		 */
		m->pending = seq;
	}
}

/* What a full ring makes of waiting is not told apart beyond so many ns. */
#define OL_WAIT_MOST 10000000

/*
 * How long did the frames of a NIC's poll wait for others? At most since the NIC was last seen
 * empty, if it has not been since.
 */
static __always_inline void ol_nic_waited(struct ol_cpu *cpu, int work, __u64 now)
{
	__u64 wait = now - cpu->stretch;

	if (!cpu->nic_full)
		cpu->stretch = now;
	else if (work > 0)
		cpu->waited += work * (wait < OL_WAIT_MOST ? wait : OL_WAIT_MOST);
}

/* A pod's end was polled: how far is it through its ring? */
static __always_inline void ol_port_polled(struct napi_struct *napi, __u32 port, __u32 work,
					   int full, __u64 before, __u64 now)
{
	struct ol_port *p = bpf_map_lookup_elem(&ol_ports, &port);

	if (!p)
		return;
	p->napi = (__u64)napi;
	ol_port_step(p, work, full, ol_gro_holds(napi), before, now);
}

static __always_inline void ol_flush_pending(__u32 this_cpu, __u32 nr_tunnels, __u32 nic_seq,
					     __u64 now)
{
	__u32 i;

	for (i = 0; i < OL_MAX_TUNNELS && i < nr_tunnels; i++) {
		struct ol_marks *m = ol_get_cell_marks(this_cpu, i);

		if (m && m->pending) {
			ol_mark_add(m, m->pending, nic_seq, now);
			m->pending = 0;
		}
	}
}

/* How many tunnels there are: the loop above need not look at more. */
__u32 ol_nr_tunnels SEC(".data.tunnels") = 0;

/* The maps by which our XDP programs send frames on: to lanes of either class, and to pods. */
__s32 ol_lane_map_id SEC(".data.tunnels") = -1;
__s32 ol_latency_map_id SEC(".data.tunnels") = -1;
__s32 ol_ports_map_id SEC(".data.tunnels") = -1;

SEC("tp_btf/napi_poll")
int BPF_PROG(ol_napi_poll, struct napi_struct *napi, int work, int budget)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), head, tail, seq;
	__u64 now = bpf_ktime_get_ns(), before, spent;
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	struct softnet_data *sd;
	int tunnel, stage, full = work >= budget;

	/* Netpoll polls without a budget, in the middle of another poll: nothing ends there. */
	if (!cpu || !budget)
		return 0;
	/* Times of one core are compared without slack: they must not step back. */
	if ((__s64)(now - cpu->now) <= 0)
		now = cpu->now + 1;
	ol_flush_pending(this_cpu, ol_nr_tunnels, cpu->nic_seq, now);

	seq = cpu->seq + 1;
	before = cpu->now;
	spent = now - before;
	cpu->queued += cpu->queue * (spent < OL_WAIT_MOST ? spent : OL_WAIT_MOST);
	cpu->now = now;
	cpu->seq = seq;
	cpu->polled++;
	/* nic_seq as before this poll: what its GRO batches comes behind this tracepoint. */
	ol_mark_add(&cpu->polls, seq, cpu->nic_seq, now);

	tunnel = ol_device_of(napi);
	if (napi->dev)
		cpu->ours = tunnel >= 0;
	if (tunnel >= 0 && tunnel < OL_MAX_TUNNELS) {
		stage = OL_STAGE_TUNNEL;
		ol_cell_polled(napi, this_cpu, tunnel, seq, cpu->nic_seq, now, full);
	} else if (tunnel > OL_MAX_TUNNELS) {
		stage = OL_STAGE_POD;
		ol_port_polled(napi, tunnel - OL_MAX_TUNNELS - 1, work, full, before, now);
	} else if ((sd = ol_backlog_of(napi, this_cpu))) {
		stage = OL_STAGE_POD;
		cpu->softnet = (__u64)sd;
		cpu->backlog_seq = seq;
	} else {
		stage = OL_STAGE_NIC;
		if (!ol_nic_holds(&cpu->holding, napi, now))
			cpu->nic_seq = seq;
	}
	/* Whatever polled: a mark's time may not run ahead of an empty queue's. */
	if (cpu->softnet) {
		sd = (void *)cpu->softnet;
		head = BPF_CORE_READ(sd, input_queue_head);
		tail = BPF_CORE_READ(sd, input_queue_tail);
		ol_progress_step(&cpu->backlog, head, tail, now);
		if (!napi->dev)
			cpu->queue = tail - head;
	}

	/*
	 * The time of a poll is known where it began as the one before ended: a
	 * NIC that has more, the next stage of what was just polled, a poll that
	 * was not finished. Else the core may have slept or run a task between.
	 * Other devices' work is not ours to account for.
	 */
	if (cpu->ours) {
		if (work > 0 && (cpu->full || (stage == OL_STAGE_NIC ? cpu->nic_full
								     : cpu->stage == stage - 1))) {
			cpu->cost[stage].ns += spent;
			cpu->cost[stage].packets += work;
		}
		if (stage == OL_STAGE_NIC)
			ol_nic_waited(cpu, work, now);
		cpu->packets[stage] += work;
	}
	cpu->full = full;
	cpu->stage = stage;
	if (stage == OL_STAGE_NIC)
		cpu->nic_full = full;
	return 0;
}

/* Frames were lost that one of our programs had sent to a lane, or to a pod. */
static __always_inline void ol_redirect_lost(int map_id, __u32 core, __u32 drops)
{
	struct ol_cpu *to;

	if (map_id == ol_ports_map_id) {
		ol_count(OL_CNT_EXPRESS_DROP, drops);
		return;
	}
	if (map_id != ol_lane_map_id && map_id != ol_latency_map_id)
		return;
	ol_count(OL_CNT_XDP_DROP, drops);
	if (map_id == ol_lane_map_id && (to = ol_get_cpu(core)))
		__sync_fetch_and_add(&to->lane_lost, drops);
}

/* Frames came to a lane's ring, or found it full. */
SEC("tp_btf/xdp_cpumap_enqueue")
int BPF_PROG(ol_lane_enqueue, int map_id, unsigned int processed, unsigned int drops, int to_cpu)
{
	if (drops)
		ol_redirect_lost(map_id, to_cpu, drops);
	return 0;
}

/* A lane's thread took frames, and had no memory to make packets of them. */
SEC("tp_btf/xdp_cpumap_kthread")
int BPF_PROG(ol_lane_starved, int map_id, unsigned int processed, unsigned int drops)
{
	__u32 core = bpf_get_smp_processor_id();
	struct ol_ring ring;

	if (!drops)
		return 0;
	/* That of a core that is offline may run here. */
	if (!ol_get_ring(core, OL_CLASS_BULK, &ring) || ring.thread != bpf_get_current_task())
		core = OL_MAX_CPUS;
	ol_redirect_lost(map_id, core, drops);
	return 0;
}

/*
 * The kernel refused to send a frame on, and dropped it: of a pod's veth the other end is without GRO, or
 * it is down. Since Linux 5.6 this comes here for maps, too, and never to xdp_redirect_map_err.
 */
SEC("tp_btf/xdp_redirect_err")
int BPF_PROG(ol_redirect_refused, const void *dev, const void *prog, const void *to, int err,
	     int map_type, __u32 map_id, __u32 index)
{
	ol_redirect_lost(map_id, index, 1);
	return 0;
}

/* Frames were handed to a device straight from the NIC, or found no room there. */
SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(ol_express_sent, const struct net_device *from, const struct net_device *to, int sent,
	     int drops)
{
	if (drops > 0 && ol_cell_of(from))
		ol_count(OL_CNT_EXPRESS_DROP, drops);
	return 0;
}

/*
 * A datagram came all the way, and its socket had no room: its reader does not keep up.
 * To bring it faster gains nothing.
 */
SEC("tp_btf/udp_fail_queue_rcv_skb")
int ol_unread(void *ctx)
{
	ol_count(OL_CNT_UNREAD, 1);
	return 0;
}

/*
 * A lane's thread took frames out of its ring; it handles them right after this. As with a poll, what
 * was decided for the batch before goes for none of these: where nothing polls on this core, because what
 * its thread handles waits on others, a flow may have gone elsewhere and come back.
 */
SEC("tp_btf/xdp_cpumap_kthread")
int BPF_PROG(ol_lane_taken, int map_id)
{
	__u32 this_cpu = bpf_get_smp_processor_id();
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	struct ol_ring ring;

	/* Atomic: a poll may interrupt the thread. */
	if (cpu)
		__sync_fetch_and_add(&cpu->seq, 1);
	if (map_id != ol_lane_map_id || !cpu || !ol_get_ring(this_cpu, OL_CLASS_BULK, &ring))
		return 0;
	/* A lane's thread that its core's going offline drove here speaks of another ring. */
	if (ring.thread != bpf_get_current_task())
		return 0;
	/* In this order: a core that sees the frames taken must not see an older time. */
	OL_WRITE(cpu->lane_time, bpf_ktime_get_ns());
	OL_WRITE(cpu->lane_seq, cpu->seq);
	OL_WRITE(cpu->lane_head, ring.consumer);
	return 0;
}

static __always_inline void ol_core_returns(struct ol_leave *leave)
{
	if (OL_READ(leave->leaving))
		OL_WRITE(leave->returns, leave->returns + 1);
	OL_WRITE(leave->leaving, 0);
}

/*
 * A step of a core's way to offline, or of its way back. What still waits in its
 * backlog when it is dead comes late (net/core/dev.c, dev_cpu_dead), so flows
 * leave it at the first step, while it runs. They may come back once it runs the
 * steps itself, which it does online.
 */
SEC("raw_tp/cpuhp_enter")
int ol_core_leaves(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 core = ctx->args[0];
	int target = ctx->args[1], step = ctx->args[2];
	struct ol_leave *leave = bpf_map_lookup_elem(&ol_leaves, &core);

	if (!leave)
		return 0;
	if (target < step) {
		OL_WRITE(leave->strayed, 1);
		OL_WRITE(leave->leaving, 1);
	} else if (core == bpf_get_smp_processor_id()) {
		ol_core_returns(leave);
	}
	return 0;
}

/*
 * Such a step ended. One that fails ends the way offline, and if it was the first,
 * there is no way back for the program above to see.
 */
SEC("raw_tp/cpuhp_exit")
int ol_core_stays(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 core = ctx->args[0];
	int err = ctx->args[3];
	struct ol_leave *leave = bpf_map_lookup_elem(&ol_leaves, &core);

	if (leave && err)
		ol_core_returns(leave);
	return 0;
}

/* What the kernel says for a refused XDP program: bpf(2) has no room for it. */
char ol_xdp_refusal[96] SEC(".data.refusal") = "";

/* Attached while an attach is under way, and no longer. */
SEC("raw_tp/bpf_xdp_link_attach_failed")
int ol_xdp_refused(struct bpf_raw_tracepoint_args *ctx)
{
	bpf_probe_read_kernel_str(ol_xdp_refusal, sizeof(ol_xdp_refusal), (void *)ctx->args[0]);
	return 0;
}

/*
 * Run by the daemon, on no tracepoint: how many frames of a core's lane are not
 * known to be handled? A raw tracepoint's program since it may use any map.
 */
SEC("raw_tp")
int ol_lane_left(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 core = ctx->args[0];
	struct ol_cpu *cpu = ol_get_cpu(core);
	struct ol_ring ring;

	if (!cpu || !ol_get_ring(core, OL_CLASS_BULK, &ring) ||
	    (ring.asleep && !ol_ring_from(&ring, ring.consumer)))
		return 0;
	/* A thread that no program watches may have frames in its hands. */
	if (!OL_READ(cpu->lane_time))
		return ol_ring_from(&ring, ring.consumer) + 1;
	return ol_ring_from(&ring, OL_READ(cpu->lane_head));
}

/* What tasks do on this core, by sampling: idle or idle-class, receive threads, anything else. */
SEC("perf_event")
int ol_sample(void *ctx)
{
	struct ol_cpu *cpu = ol_get_cpu(bpf_get_smp_processor_id());
	struct task_struct *task = (void *)bpf_get_current_task_btf();
	__u32 policy = task->policy;

	if (!cpu)
		return 0;
	cpu->samples[0]++;
	if (task->pid == 0 || policy == SCHED_IDLE)
		cpu->samples[1]++;
	else if (task->flags & PF_KTHREAD)
		cpu->samples[2]++;
	else
		cpu->samples[3]++;
	return 0;
}
