// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * In front of a merge point that is a queue of the kernel's (fq): it lets packets go at the
 * time that they are stamped with. A redirect clears stamps, so they are stamped here.
 */
#include "kernel.h"
#include "maps.h"
#include "resequence.h"
#include "split.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* What ways through branches are measured in, ns; told by the loader. */
const volatile __u64 ol_way_unit_ns = 1;

/* One entry: it is read as a whole, many times a second. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ol_ways);
} ol_way_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OL_NR_RESEQUENCE_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} ol_resequence_counters SEC(".maps");

static __always_inline void ol_resequence_count(enum ol_resequence_counter c, __u32 n)
{
	__u32 key = c;
	__u64 *v = bpf_map_lookup_elem(&ol_resequence_counters, &key);

	if (v)
		*v += n;
}

/* Of a packet that brings what its branch has not brought yet, and so was not sent again. */
static __always_inline void ol_measure_way(__u64 release, __u64 now, __u32 delay, __u32 segs)
{
	__s64 way = now + delay - release;
	__u64 unit = way > 0 ? way / ol_way_unit_ns : 0;
	__u32 zero = 0;
	struct ol_ways *ways = bpf_map_lookup_elem(&ol_way_counts, &zero);

	if (ways)
		ways->packets[unit < OL_WAYS ? unit : OL_WAYS - 1] += segs;
	if ((__s64)(now - release) > 0)
		ol_resequence_count(OL_RESEQUENCE_LATE, segs);
}

SEC("tcx/egress")
int ol_merge_release(struct __sk_buff *skb)
{
	/* struct ol_merge_mark */
	__u32 at = skb->cb[1] & 0xff, branch = skb->cb[1] >> 8 & 0xff, segs = skb->cb[1] >> 16;
	__u32 seq = skb->cb[2], end = skb->cb[3], front;
	struct ol_policy *policy = ol_get_policy();
	struct ol_merging *g;
	struct ol_notes *n;
	__u64 release;

	if (skb->cb[0] != ol_merge_magic || !policy)
		return TCX_NEXT;
	g = bpf_map_lookup_elem(&ol_mergings, &at);
	n = bpf_map_lookup_elem(&ol_noted, &at);
	/* A flow that is not split any more has come whole. */
	if (!g || !n || OL_READ(g->generation) != skb->cb[4])
		return TCX_NEXT;
	front = OL_READ(n->front);
	if (ol_after(end, front))
		OL_WRITE(n->front, end);
	ol_resequence_count(ol_after(front, seq) ? OL_RESEQUENCE_OVERTAKEN : OL_RESEQUENCE_FIRST,
			    segs);
	release = ol_note_find(n, seq);
	if (branch >= OL_ALL_BRANCHES) {
		/* Nothing is known of its way. */
	} else if (!ol_after(end, n->brought[branch])) {
		/*
		 * Sent again. Before what was sent before it, it would tell the sender that that
		 * is lost (RACK).
		 */
		release = ol_noted_last(n);
	} else {
		n->brought[branch] = end;
		/* What joins comes by the polling core. */
		if (release && !(branch == OL_BRANCH_HERE && OL_READ(n->joins)))
			ol_measure_way(release, bpf_ktime_get_ns(), policy->merge_delay, segs);
	}
	if (!release) {
		ol_resequence_count(OL_RESEQUENCE_UNKNOWN, segs);
		return TCX_NEXT;
	}
	bpf_skb_set_tstamp(skb, release, BPF_SKB_TSTAMP_DELIVERY_MONO);
	return TCX_NEXT;
}
