// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * XDP on the underlay: the split of the first stage. Before an skb exists, a
 * flow's frames go to a lane: a cpumap thread on another core, which builds the
 * skb and does the rest of the stage there. Who is not understood, not steered
 * or not for a tunnel of ours is passed.
 */
#include "kernel.h"
#include "xdp.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("xdp.frags")
int ol_underlay_xdp(struct xdp_md *ctx)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), lane;
	struct ol_policy *policy = ol_get_policy();
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	struct ol_frame f = {};
	enum ol_reason r;

	if (!policy || !cpu)
		return XDP_PASS;
	r = ol_read_xdp(ctx, &f, 1);
	if (r || f.tunnel >= OL_MAX_TUNNELS)
		return XDP_PASS;

	struct ol_hop h = {
		.policy = policy,
		.lanes = &policy->stage[OL_STAGE_NIC],
		.cpu = cpu,
		.this_cpu = this_cpu,
		.stage = OL_STAGE_NIC,
		.tunnel = policy->tunnel[f.tunnel].no_gro ? OL_NO_CELL : f.tunnel,
	};

	ol_count(OL_CNT_XDP_OVERLAY, 1);
	lane = ol_steer_flow(&h, &f.flow, &r);
	if (r || lane >= OL_MAX_LANES)
		return XDP_PASS;
	ol_count(OL_CNT_XDP_LANE, 1);
	ol_count_lane(OL_STAGE_NIC, lane, 1);
	return bpf_redirect_map(&ol_lane_threads, h.lanes->cpu[lane], XDP_PASS);
}

/*
 * Run by the daemon, on no device, with a core's number and a class for a frame:
 * where is its lane? An XDP program of the same kind as the one above: a cpumap
 * serves programs of one kind only (kernel/bpf/core.c, bpf_check_tail_call).
 */
SEC("xdp.frags")
int ol_find_lane(struct xdp_md *ctx)
{
	__u32 *core = (void *)(long)ctx->data, class;
	struct bpf_cpu_map *map;
	struct bpf_cpu_map_entry *entry = NULL;
	struct ol_leave *leave;
	struct ol_cpu *cpu;

	if ((void *)(core + 2) > (void *)(long)ctx->data_end || *core >= ol_nr_cpus)
		return XDP_ABORTED;
	class = core[1];
	if (class >= OL_NR_CLASSES)
		return XDP_ABORTED;
	map = class == OL_CLASS_BULK ? (struct bpf_cpu_map *)&ol_lane_threads
				     : (struct bpf_cpu_map *)&ol_latency_threads;
	cpu = ol_get_cpu(*core);
	leave = bpf_map_lookup_elem(&ol_leaves, core);
	if (!cpu || !leave || bpf_probe_read_kernel(&entry, sizeof(entry), map->cpu_map + *core))
		return XDP_ABORTED;
	cpu->lane[class] = (__u64)entry;
	OL_WRITE(leave->strayed, 0);
	cpu->lane_pid[class] = entry ? BPF_CORE_READ(entry, kthread, pid) : 0;
	return entry ? XDP_PASS : XDP_DROP;
}
