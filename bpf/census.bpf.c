// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * A census of the flows that come out of tunnels, for a moment: how many packets and bytes does
 * each bring? To decide whether small, sparse flows come beside large ones takes no more. Read
 * only, on the tunnels' ingress.
 */
#include "kernel.h"
#include "aggregate.h"
#include "parse.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* What a flow has brought since the census began. */
struct ol_census_flow {
	__u64 flow; /* addresses, protocol and ports, mixed; 0: none */
	__u32 packets;
	__u32 bytes;
	__u32 datagrams; /* of the packets, those of UDP */
	__u32 pad;
};

#define OL_CENSUS_FLOWS 512

/* A flow has one place; one that finds it taken is counted at the end, with the rest. */
OL_MAP(PERCPU_ARRAY, ol_census_flows, OL_CENSUS_FLOWS + 1, __u32, struct ol_census_flow);

SEC("tcx/ingress")
int ol_tunnel_census(struct __sk_buff *skb)
{
	const __u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 segs = skb->gso_segs > 1 ? skb->gso_segs : 1, place;
	struct ol_census_flow *f;
	__u8 proto = 0;
	const __u8 *l4 = ol_plain_ports(data, end, &proto);
	__u64 flow = l4 ? ol_flow_name(data + OL_ETH_HLEN, l4, proto) : 0;

	place = flow >> 55;
	f = bpf_map_lookup_elem(&ol_census_flows, &place);
	if (!f)
		return TCX_NEXT;
	if (!flow || (f->flow && f->flow != flow)) {
		place = OL_CENSUS_FLOWS;
		f = bpf_map_lookup_elem(&ol_census_flows, &place);
		if (!f)
			return TCX_NEXT;
	} else {
		f->flow = flow;
	}
	f->packets += segs;
	f->bytes += skb->len;
	if (proto == OL_IPPROTO_UDP)
		f->datagrams += segs;
	return TCX_NEXT;
}
