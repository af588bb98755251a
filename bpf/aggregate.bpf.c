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

/* What is counted on tunnels, and on NICs. Each entry is read as a whole. */
enum ol_place { OL_ON_TUNNELS, OL_ON_NICS, OL_NR_PLACES };

OL_MAP(PERCPU_ARRAY, ol_aggregates, OL_NR_PLACES, __u32, struct ol_aggregated);

/* The last datagram of each of some flows. Index: place * OL_DATAGRAMS + what the flow's name comes to. */
#define OL_DATAGRAMS 256

OL_MAP(PERCPU_ARRAY, ol_datagrams, (OL_NR_PLACES * OL_DATAGRAMS), __u32, struct ol_datagram);

/* A packet's headers: all of them need not be in its first buffer. */
OL_MAP(PERCPU_ARRAY, ol_datagram_heads, 1, __u32, __u8[OL_DATAGRAM_HEADERS]);

/* The longest frame that a packet of the NICs can hold. */
volatile __u32 ol_whole = 0xffff;

static __always_inline struct ol_datagram *ol_last_datagram(enum ol_place place, __u64 flow)
{
	return ol_at(&ol_datagrams,
		     place * OL_DATAGRAMS + (__u32)(flow * 0x9e3779b97f4a7c15ULL >> 56));
}

/* Reads headers from there on; 0 if there are none. */
static __always_inline int ol_datagram_head(struct __sk_buff *skb, __u32 from, __u8 *data)
{
	__u32 n = skb->len;

	if (n <= from)
		return 0;
	n -= from;
	if (n > OL_DATAGRAM_HEADERS)
		n = OL_DATAGRAM_HEADERS;
	asm volatile("" : "+r"(n)); /* the compiler knows that it is not 0, the verifier does not */
	return n && !bpf_skb_load_bytes(skb, from, data, n);
}

SEC("tcx/ingress")
int ol_tunnel_count(struct __sk_buff *skb)
{
	__u32 segs = skb->gso_segs > 1 ? skb->gso_segs : 1;
	struct ol_aggregated *a = ol_at(&ol_aggregates, OL_ON_TUNNELS);
	__u8 *data = ol_at(&ol_datagram_heads, 0);
	struct ol_cpu *cpu = ol_get_cpu(bpf_get_smp_processor_id());
	struct ol_datagram d = {}, *last;
	int port;

	if (!a || !data)
		return TCX_NEXT;
	a->packets += segs;
	if (!ol_datagram_head(skb, 0, data))
		return TCX_NEXT;
	port = ol_datagram_read(data, skb->len, segs, ol_whole, &d);
	if (port < 0)
		return TCX_NEXT;
	a->udp += segs;
	d.at = a->packets;
	d.poll = cpu ? cpu->seq : 0;
	last = ol_last_datagram(OL_ON_TUNNELS, d.flow);
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

/*
 * Where the frame in a tunnel's packet begins, 0: it is none. What GRO takes together by the outer headers: *form,
 * OL_FORM_ALONE or what is beside it, and *ports.
 */
static __always_inline __u32 ol_inner_frame(const __u8 *data, __u32 size, __u32 segs, __u32 *form,
					    __u32 *ports)
{
	struct ol_policy *policy = ol_get_policy();
	__u32 room, at = ol_datagram_ports(data, &room, form), i, len;

	if (!at || !policy)
		return 0;
	*ports = ol_word(data + at);
	if (segs == 1 && at + room != size)
		*form = OL_FORM_ALONE;
	else if (*form != OL_FORM_ALONE)
		*form = data[at + 6] | data[at + 7] ? OL_FORM_SUMMED : OL_FORM_V4;
	for (i = 0; i < OL_MAX_TUNNELS && i < policy->nr_tunnels; i++) {
		const struct ol_tunnel *t = &policy->tunnel[i];

		if (!t->kind || t->port != ol_be16(data + at + 2))
			continue;
		len = ol_encap(t->kind, data + at + 8);
		return len ? at + 8 + len : 0;
	}
	return 0;
}

struct sk_buff___local {
	__u8 encapsulation : 1;
} OL_CORE;

void *bpf_cast_to_kern_ctx(void *ctx) __ksym;

/*
 * Has a sender on the same machine put the packet into its tunnel? GRO does not take such a packet (udp_gro_receive), unless
 * the sender has cut it out of a larger one (UDP_SEGMENT).
 */
static __always_inline int ol_encapsulated_here(struct __sk_buff *skb)
{
	struct sk_buff___local *s = bpf_cast_to_kern_ctx(skb);

	return BPF_CORE_READ_BITFIELD_PROBED(s, encapsulation);
}

/*
 * A NIC joins also what comes out of tunnels without a program, and what the host forwards and is no tunnel's. What sockets
 * of the host get it joins not, so that a flow of that counts once some of it was joined.
 */
SEC("tcx/ingress")
int ol_nic_order(struct __sk_buff *skb)
{
	__u32 segs = skb->gso_segs > 1 ? skb->gso_segs : 1, outer, ports, inner;
	struct ol_aggregated *a = ol_at(&ol_aggregates, OL_ON_NICS);
	__u8 *data = ol_at(&ol_datagram_heads, 0);
	struct ol_datagram d = {}, *last;

	if (!a || !data)
		return TCX_NEXT;
	a->packets += segs;
	if (!ol_datagram_head(skb, 0, data))
		return TCX_NEXT;
	inner = ol_inner_frame(data, skb->len, segs, &outer, &ports);
	if (inner && !ol_datagram_head(skb, inner, data))
		return TCX_NEXT;
	if (ol_datagram_read(data, skb->len - inner, segs, ~0U, &d) < 0)
		return TCX_NEXT;
	if (inner && segs == 1 && ol_encapsulated_here(skb))
		outer = OL_FORM_ALONE;
	if (inner && outer == OL_FORM_ALONE)
		d.form = OL_FORM_ALONE;
	if (inner && d.form != OL_FORM_ALONE) {
		d.form |= outer & OL_FORM_SUMMED;
		d.outer = ports;
	}
	d.at = a->packets;
	last = ol_last_datagram(OL_ON_NICS, d.flow);
	if (!last)
		return TCX_NEXT;
	d.joined = segs > 1 || (last->flow == d.flow && last->joined);
	if (inner || d.joined)
		a->mixed += ol_datagram_mixed(last, &d);
	*last = d;
	return TCX_NEXT;
}
