// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * What aggregation comes to: how many packets come out of a tunnel, and how many of them as
 * parts of UDP super-packets. Read only, on the tunnel's ingress while aggregation is on.
 */
#include "kernel.h"
#include "aggregate.h"
#include "parse.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* One entry: it is read as a whole. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ol_aggregated);
} ol_aggregates SEC(".maps");

SEC("tcx/ingress")
int ol_tunnel_count(struct __sk_buff *skb)
{
	const __u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 segs = skb->gso_segs > 1 ? skb->gso_segs : 1, zero = 0;
	struct ol_aggregated *a = bpf_map_lookup_elem(&ol_aggregates, &zero);

	if (!a)
		return TCX_NEXT;
	a->packets += segs;
	if (segs > 1 && ol_is_udp(data, end)) {
		a->datagrams += segs;
		a->supers++;
	}
	return TCX_NEXT;
}
