// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Priority, run to completion (PRISM-sync): while bulk makes way, what comes for a pod
 * goes from the tunnel straight to the pod's end of its veth, past the bridge and the queue
 * behind it, where user space has found that nothing is skipped that could matter. Of bulk,
 * too: what its lane costs more than the stock path, it gets back here.
 *
 * tcx on the tunnel's ingress. Which thread runs this tells the class of a frame: a thread
 * polls what it has handed on before any other does.
 */
#include "kernel.h"
#include "peer.h"
#include "steer.h"
#include "priority.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

OL_MAP(HASH, ol_shortcuts, OL_SHORTCUTS, struct ol_shortcut_key, struct ol_shortcut);

/* When a sender's frame last went by the bridge, us. */
OL_MAP(LRU_HASH, ol_senders, OL_SHORTCUTS, struct ol_shortcut_key, __u32);

/* Which class's thread runs this, with no frames but its own? OL_NR_CLASSES: of no class. */
static __always_inline __u32 ol_class_of_task(const struct ol_prio *p, const struct ol_cpu *cpu)
{
	__u32 task = bpf_get_current_pid_tgid();

	/* 0 is no task to us; to the kernel, the idle task, which a softirq may interrupt. */
	if (!p->demoted || !task)
		return OL_NR_CLASSES;
	if (p->task == task || cpu->lane_pid[OL_CLASS_LATENCY] == task)
		return OL_CLASS_LATENCY;
	return cpu->lane_pid[OL_CLASS_BULK] == task ? OL_CLASS_BULK : OL_NR_CLASSES;
}

/* Does nothing of the packet's flow wait where the pipeline sent it to, in another backlog? */
static __always_inline int ol_pods_here(struct __sk_buff *skb, __u32 this_cpu)
{
	__u32 slot = skb->tc_index % OL_SLOTS;
	struct ol_owner *o;
	struct ol_slot *s;
	__u32 owner;

	if (!(skb->tc_index & OL_TAG))
		return 1;
	o = bpf_map_lookup_elem(&ol_owners, &slot);
	if (!o || !o->cpu[OL_STAGE_POD])
		return 1;
	owner = o->cpu[OL_STAGE_POD] - 1;
	s = ol_get_slot(owner, OL_STAGE_POD, slot);
	/* A lane is left when a packet goes by the bridge, under the order guard. */
	return s && s->lane >= OL_MAX_LANES && (owner == this_cpu || ol_pod_left(slot));
}

SEC("tcx/ingress")
int ol_tunnel_in(struct __sk_buff *skb)
{
	__u32 this_cpu = bpf_get_smp_processor_id(), head, tail, *last;
	struct ol_prio *p = bpf_map_lookup_elem(&ol_prios, &this_cpu);
	struct ol_cpu *cpu = ol_get_cpu(this_cpu);
	const __u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ol_shortcut_key key = {};
	struct ol_shortcut *to;
	__u32 class;
	__u8 proto;

	if (!p || !cpu)
		return TCX_NEXT;
	class = ol_class_of_task(p, cpu);
	if (class >= OL_NR_CLASSES)
		return TCX_NEXT;
	key.ifindex = skb->ifindex;
	if (data + OL_ETH_HLEN > end || skb->vlan_present)
		return TCX_NEXT;
	__builtin_memcpy(key.mac, data, sizeof(key.mac));
	to = bpf_map_lookup_elem(&ol_shortcuts, &key);
	if (!to || (!skb->gso_size && skb->len > to->max_len) ||
	    !ol_plain_ports(data, end, &proto)) /* what bridge and netfilter would let pass */
		goto bridge;
	/*
	 * What its flow sent by the bridge waits in this core's backlog, or nowhere: RPS
	 * that is not ours would have moved it, and then there is no redirect path.
	 */
	if (!ol_backlog(this_cpu, &head, &tail) || head != tail || !ol_pods_here(skb, this_cpu))
		goto bridge;
	__builtin_memcpy(key.mac, data + 6, sizeof(key.mac));
	if (!ol_one_sender(key.mac))
		goto bridge;
	if (to->refresh_us) {
		last = bpf_map_lookup_elem(&ol_senders, &key);
		if (!last || p->now - *last > to->refresh_us) {
			bpf_map_update_elem(&ol_senders, &key, &p->now, BPF_ANY);
			goto bridge;
		}
	}
	p->short_cut[class]++;
	return ol_to_peer(skb, to->host);
bridge:
	p->bridged[class]++;
	return TCX_NEXT;
}
