// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * What aggregation comes to: how many packets come out of a tunnel, and how many of them as
 * parts of UDP super-packets; and before it acts, how many could be. Read only, on the tunnel's
 * ingress.
 */
#include "kernel.h"
#include "aggregate.h"
#include "parse.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* One entry: it is read as a whole. */
OL_MAP(PERCPU_ARRAY, ol_aggregates, 1, __u32, struct ol_aggregated);

/* The last datagram of each of some flows. */
#define OL_DATAGRAMS 64

OL_MAP(PERCPU_ARRAY, ol_datagrams, OL_DATAGRAMS, __u32, struct ol_datagram);

/* Whether it is watched. */
volatile __u32 ol_watching = 0;

SEC("tcx/ingress")
int ol_tunnel_count(struct __sk_buff *skb)
{
	const __u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 segs = skb->gso_segs > 1 ? skb->gso_segs : 1;
	struct ol_aggregated *a = ol_at(&ol_aggregates, 0);
	struct ol_datagram d = {}, *last;

	if (!a)
		return TCX_NEXT;
	a->packets += segs;
	if ((segs == 1 && !ol_watching) || !ol_datagram_of(data, end, &d))
		return TCX_NEXT;
	if (segs > 1) {
		a->datagrams += segs;
		a->supers++;
		return TCX_NEXT;
	}
	d.len = skb->len;
	d.at = a->packets;
	last = ol_at(&ol_datagrams, d.flow * 0x9e3779b97f4a7c15ULL >> 58);
	if (!last)
		return TCX_NEXT;
	a->follows += ol_datagram_follows(last, &d);
	*last = d;
	return TCX_NEXT;
}
