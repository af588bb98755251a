// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * XDP on the underlay: the split of the first stage. Before an skb exists, a
 * flow's frames go straight to their pod, where nothing on the way there could tell, or to a
 * lane: a cpumap thread on another core, which builds the
 * skb and does the rest of the stage there. An elephant's go to several, a micro-flow
 * to each. What is not understood, not steered or for no tunnel that is served is passed.
 */
#include "kernel.h"
#include "xdp.h"
#include "microflow.h"
#include "express_entries.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The sequence numbers of a TCP frame. */
__noinline int ol_frame_seqs(struct xdp_md *ctx, const struct ol_frame *f, struct ol_part *part)
{
	__u8 head[20];

	if (!f || !part || bpf_xdp_load_bytes(ctx, f->flow.l4, head, sizeof(head)))
		return 0;
	return ol_tcp_seqs(head, f->flow.len, &part->seq, &part->end);
}

/* Gives a frame its number to take along. */
static __always_inline void ol_put_number(struct xdp_md *ctx, __u32 number)
{
	__u32 *why;

	if (ol_put_word(ctx, ol_numbered(ol_merge_magic, number)))
		return;
	why = ol_at(&ol_unnumbered, 0);
	/* The driver knows no metadata. */
	if (why)
		__sync_fetch_and_or(why, OL_BY_DRIVER);
}

SEC("xdp.frags")
int ol_underlay_xdp(struct xdp_md *ctx)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), lane, branch;
	struct ol_policy *policy = ol_get_policy();
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	struct ol_frame f = {};
	enum ol_reason r;

	if (!policy || !cpu)
		return XDP_PASS;
	cpu->came++;
	if (ol_unfinished_frame(ctx))
		return XDP_PASS;
	if (policy->flags & OL_F_EXPRESS && ol_express_next(ctx) == XDP_REDIRECT)
		return XDP_REDIRECT;
	r = ol_read_xdp(ctx, &f, 1);
	if (r || f.tunnel >= OL_MAX_TUNNELS)
		return XDP_PASS;

	struct ol_hop h = ol_hop_at(OL_STAGE_NIC, policy, cpu, this_cpu, f.tunnel);

	ol_count(OL_CNT_XDP_OVERLAY, 1);
	if (ol_express_steer(ctx, policy, &h, &f, 0, &lane, &r) == XDP_REDIRECT)
		return XDP_REDIRECT;
	if (r)
		return XDP_PASS;
	if (lane == OL_LANE_REFUSED) {
		ol_count(OL_CNT_REFUSED, 1);
		return XDP_DROP;
	}
	if (ol_splits(policy->split_protos, f.flow.proto)) {
		struct ol_part part = {
			.slot = h.slot,
			.tunnel = h.tunnel,
			.len = bpf_xdp_get_buff_len(ctx),
			.segs = 1,
			.again = h.again,
		};

		if (f.flow.proto == OL_IPPROTO_TCP)
			ol_frame_seqs(ctx, &f, &part);
		branch = ol_split(&f.flow, &part);
		if (branch == OL_NO_ROOM)
			return XDP_DROP;
		if (branch != OL_NO_BRANCH) {
			lane = ol_branch_lane(policy, bpf_get_smp_processor_id(), branch);
			if (f.flow.proto == OL_IPPROTO_UDP && part.seq != part.end)
				ol_put_number(ctx, part.seq);
		}
	}
	if (lane >= h.lanes->nr || lane >= OL_MAX_LANES)
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
