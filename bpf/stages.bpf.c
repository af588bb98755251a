// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* tcx programs of the pipeline: they choose the core of the next stage (tcx.h). */
#include "kernel.h"
#include "tcx.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * Of the latency class, while bulk makes way: what bulk's thread does not bring.
 * Latency stays on the core that polls the NIC, on which no lane is: bulk, on lanes,
 * waits in other queues.
 */
static __always_inline int ol_of_latency(const struct ol_cpu *cpu, __u32 this_cpu)
{
	struct ol_prio *p = bpf_map_lookup_elem(&ol_prios, &this_cpu);

	return p && p->demoted && (__u32)bpf_get_current_pid_tgid() != cpu->lane_pid[OL_CLASS_BULK];
}

/* Drops a packet whose flow is to leave a full lane. */
static __always_inline int ol_refuse(const struct __sk_buff *skb)
{
	ol_count(OL_CNT_REFUSED, skb->gso_segs ? skb->gso_segs : 1);
	return TCX_DROP;
}

SEC("tcx/ingress")
int ol_underlay_in(struct __sk_buff *skb)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), lane, tunnel;
	struct ol_policy *policy = ol_get_policy();
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	struct ol_frame f = {};
	enum ol_reason r = 0;
	int verdict;

	if (!policy || !cpu)
		return TCX_NEXT;
	if (!ol_of_tunnel(skb, policy, &f, &verdict))
		return verdict;
	tunnel = f.tunnel;
	if (tunnel >= OL_MAX_TUNNELS)
		return TCX_NEXT;

	struct ol_hop h = ol_hop_at(OL_STAGE_TUNNEL, policy, cpu, this_cpu, tunnel);

	h.stay = ol_of_latency(cpu, this_cpu);
	ol_count(OL_CNT_OVERLAY, skb->gso_segs ? skb->gso_segs : 1);
	lane = ol_steer_flow(&h, &f.flow, &r);
	if (r) {
		ol_reason(r);
		return ol_stay(skb, policy);
	}
	if (lane == OL_LANE_REFUSED)
		return ol_refuse(skb);
	skb->tc_index = OL_TAG | (h.stay ? OL_TAG_LATENCY : 0) | h.slot;
	return ol_to_tunnel(skb, policy, lane, h.slot);
}

/*
 * On a tunnel's ingress: the packet is on the core that its hash has chosen. What goes on to a pod gets
 * another one there; what the host forwards must not take paths, queues and buckets by this one. The
 * kernel computes the hash anew when it needs it. Which flow it is tc_index still tells.
 */
SEC("tcx/ingress")
int ol_tunnel_clear(struct __sk_buff *skb)
{
	bpf_set_hash_invalid(skb);
	return TCX_NEXT;
}

/*
 * Keeps a packet on this core, whose queue it takes anyway. Programs in the pod may choose sockets by its hash: it gets
 * one that leads to this core, or 0 where the pod's mask is without it. flow is what is the same for all of its flow, if
 * that is known.
 */
static __always_inline int ol_pod_stay(struct __sk_buff *skb, const struct ol_policy *policy,
				       __u32 this_cpu, __u32 flow, int known)
{
	__u32 first = this_cpu < OL_MAX_CPUS ? policy->pod_stay[this_cpu] : 0;

	if (!first || !known || !(policy->flags & OL_F_NEUTRAL))
		return ol_stay(skb, policy);
	bpf_set_hash(skb, ol_hash_from(&policy->stage[OL_STAGE_POD], first, flow));
	return TCX_NEXT;
}

SEC("tcx/egress")
int ol_pod_out(struct __sk_buff *skb)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), lane, segs;
	struct ol_policy *policy = ol_get_policy();
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);

	if (!policy || !cpu)
		return TCX_NEXT;
	if (!(skb->tc_index & OL_TAG))
		return ol_pod_stay(skb, policy, this_cpu, skb->hash, skb->hash != 0);

	struct ol_hop h = ol_hop_at(OL_STAGE_POD, policy, cpu, this_cpu, OL_NO_CELL);

	h.slot = skb->tc_index % OL_SLOTS;
	h.stay = skb->tc_index & OL_TAG_LATENCY;
	skb->tc_index = 0;
	segs = skb->gso_segs ? skb->gso_segs : 1;
	ol_count(OL_CNT_POD, segs);
	lane = ol_steer(&h);
	if (lane == OL_LANE_REFUSED)
		return ol_refuse(skb);
	/* A lane on this core is the queue that the packet takes anyway. */
	if (lane >= OL_MAX_LANES || h.lanes->cpu[lane] == this_cpu)
		return ol_pod_stay(skb, policy, this_cpu, h.slot, 1);
	bpf_set_hash(skb, ol_lane_hash(h.lanes, lane, h.slot));
	ol_count(OL_CNT_POD_STEERED, segs);
	ol_count_lane(OL_STAGE_POD, lane, segs);
	return TCX_NEXT;
}

/*
 * For pods whose RPS another program has set: what the underlay's program did to
 * the packet is undone. The kernel computes the hash anew when it needs it.
 */
SEC("tcx/egress")
int ol_pod_restore(struct __sk_buff *skb)
{
	if (skb->tc_index & (OL_TAG | OL_TAG_HASH)) {
		skb->tc_index = 0;
		bpf_set_hash_invalid(skb);
	}
	return TCX_NEXT;
}
