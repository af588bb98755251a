// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * What aggregation comes to: how many packets come out of a tunnel, and how many of them as
 * parts of UDP super-packets; and before it acts, how many could be. Read only, on the tunnel's
 * ingress.
 */
#include "kernel.h"
#include "aggregate.h"
#include "maps.h"
#include "parse.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* One entry: it is read as a whole. */
OL_MAP(PERCPU_ARRAY, ol_aggregates, 1, __u32, struct ol_aggregated);

/* The last datagram of each of some flows. */
#define OL_DATAGRAMS 512

OL_MAP(PERCPU_ARRAY, ol_datagrams, OL_DATAGRAMS, __u32, struct ol_datagram);

/* A packet's headers: all of them need not be in its first buffer. */
OL_MAP(PERCPU_ARRAY, ol_datagram_heads, 1, __u32, __u8[OL_DATAGRAM_HEADERS]);

/* The longest frame that a packet of the NICs can hold. */
volatile __u32 ol_whole = 0xffff;

SEC("tcx/ingress")
int ol_tunnel_count(struct __sk_buff *skb)
{
	__u32 segs = skb->gso_segs > 1 ? skb->gso_segs : 1, len = skb->len;
	__u32 head = len < OL_DATAGRAM_HEADERS ? len : OL_DATAGRAM_HEADERS;
	struct ol_aggregated *a = ol_at(&ol_aggregates, 0);
	__u8 *data = ol_at(&ol_datagram_heads, 0);
	struct ol_cpu *cpu = ol_get_cpu(bpf_get_smp_processor_id());
	struct ol_datagram d = {}, *last;
	int port;

	if (!a || !data)
		return TCX_NEXT;
	a->packets += segs;
	if (!head || bpf_skb_load_bytes(skb, 0, data, head))
		return TCX_NEXT;
	port = ol_datagram_read(data, len, segs, ol_whole, &d);
	if (port < 0)
		return TCX_NEXT;
	a->udp += segs;
	d.at = a->packets;
	d.poll = cpu ? cpu->seq : 0;
	last = ol_at(&ol_datagrams, d.flow * 0x9e3779b97f4a7c15ULL >> 55);
	if (!last)
		return TCX_NEXT;
	a->mixed += ol_datagram_mixed(last, &d);
	if (segs > 1) {
		a->datagrams += segs;
		a->supers++;
	} else if (ol_datagram_follows(last, &d)) {
		a->follows++;
		a->together += last->poll == d.poll;
		a->port = port;
	}
	*last = d;
	return TCX_NEXT;
}
