/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Aggregation: what is counted of it, and of what it could join. Its decisions are user space's.
 * Inputs in, result out; no maps, no helpers.
 */
#ifndef OVERLANE_AGGREGATE_H
#define OVERLANE_AGGREGATE_H

#include "abi.h"
#include "parse.h"

/* Of packets that came out of tunnels. */
struct ol_aggregated {
	__u64 packets;	 /* as they were sent */
	__u64 udp;	 /* datagrams of these, and first fragments of datagrams */
	__u64 datagrams; /* of these, in super-packets */
	__u64 supers;	 /* these */
	__u64 follows;	 /* datagrams that were not joined to another, and could have been */
	__u64 together;	 /* those of follows that came in one poll with the one before */
	__u64 mixed;	 /* that GRO takes otherwise than one of their flow shortly before */
	__u32 port;	 /* to which the last of follows was sent */
	__u32 pad;
};

/*
 * How GRO takes a datagram. Those of one flow leave GRO in the order in which they came as long as it takes all alike: it
 * hands on at once what it does not take, and holds what it took to the end of a poll (dev_gro_receive, net/core/gro.c).
 */
#define OL_FORM_ALONE 0	      /* not at all: it is handed on at once */
#define OL_FORM_V4 1	      /* with others of its addresses and ports */
#define OL_FORM_APART 2	      /* only with others that have the same extension header of IPv6 */
#define OL_FORM_V6 0x01000000 /* and the flow label: only with others of the same one */
#define OL_FORM_SUMMED \
	0x02000000 /* beside others: only with those that have an outer checksum, too */

/* A datagram, as far as GRO compares it with the next of its flow. */
struct ol_datagram {
	__u64 flow;   /* addresses and ports, mixed */
	__u32 len;    /* of the frame; 0: none */
	__u32 at;     /* packets that had come out of tunnels on this core */
	__u32 form;   /* OL_FORM_... */
	__u32 poll;   /* polls that had ended on this core: GRO joins within one */
	__u32 joined; /* GRO has joined some of the flow */
	__u32 outer;  /* ports of the tunnel, 0 behind it: GRO takes together what has the same */
};

/*
 * Of packets to which no NIC has given different hashes GRO holds eight that do not belong
 * together, and then lets go of the oldest (net/core/gro.c, MAX_GRO_SKBS).
 */
#define OL_FOLLOWS_WITHIN 8

/* What GRO holds it lets go of after a poll, which is of 64 packets as a rule. */
#define OL_MIXED_WITHIN 256

/* Names a flow by its ports, at l4, and the addresses of an IP header that is there. Never 0. */
OL_INLINE __u64 ol_flow_name(const __u8 *ip, const __u8 *l4, __u8 proto)
{
	const __u8 *addr = ip + 12;
	__u64 mixed;
	int i;

	/* All of IPv4's addresses, and the last of IPv6's. */
	if (ip[0] >> 4 == 6)
		addr = ip + 32;
	mixed = (__u64)ol_word(addr) << 32 | ol_word(addr + 4);
	if (ip[0] >> 4 == 6)
		for (i = 8; i < 32; i += 8)
			mixed = mixed * 31 + ((__u64)ol_word(ip + i) << 32 | ol_word(ip + i + 4));
	mixed = (mixed ^ ol_word(l4) + proto) * 0x9e3779b97f4a7c15ULL;
	return mixed + !mixed;
}

/*
 * What is read of a frame: Ethernet, IPv6, an extension header of 32 bytes, UDP, the head of a tunnel's header; of IPv4 with
 * all options it is less.
 */
#define OL_DATAGRAM_HEADERS (OL_ETH_HLEN + 40 + 32 + 8 + OL_ENCAP_HLEN)

/*
 * Where a datagram of UDP, or its first fragment, has its ports, and how GRO takes it by its IP header; *room: what that
 * header leaves for UDP. 0: it is none.
 */
OL_INLINE __u32 ol_datagram_ports(const __u8 *data, __u32 *room, __u32 *form)
{
	const __u8 *ip = data + OL_ETH_HLEN, *ext = ip + 40;
	__u32 head = 0;
	__u16 frag;
	__u8 next = ip[6];

	if (ol_be16(data + 12) == OL_ETH_P_IP) {
		frag = ol_be16(ip + 6) & 0x3fff;
		head = (ip[0] & 15) * 4;
		if (ip[0] >> 4 != 4 || ip[9] != OL_IPPROTO_UDP || frag & 0x1fff || head < 20)
			return 0;
		*room = ol_be16(ip + 2) - head;
		*form = frag || head > 20 ? OL_FORM_ALONE : OL_FORM_V4;
		return OL_ETH_HLEN + head;
	}
	if (ol_be16(data + 12) != OL_ETH_P_IPV6 || ip[0] >> 4 != 6)
		return 0;
	*form = OL_FORM_V6 | (ip[1] & 15) << 16 | ip[2] << 8 | ip[3];
	if (next == OL_IPPROTO_FRAGMENT) {
		if (ol_be16(ext + 2) >> 3)
			return 0;
		*form = OL_FORM_ALONE;
		head = 8;
	} else if (next == 0 || next == 43 || next == 60) {
		if (ext[1] > 3) /* such long ones are rare */
			return 0;
		*form = OL_FORM_APART;
		head = 8 + (ext[1] & 3) * 8;
	}
	*room = ol_be16(ip + 4) - head;
	return (head ? ext[0] : next) == OL_IPPROTO_UDP ? OL_ETH_HLEN + 40 + head : 0;
}

/*
 * Names a datagram's flow, and how GRO takes it; data has OL_DATAGRAM_HEADERS bytes, of which len are the frame's. segs:
 * datagrams that are joined in it; whole: the longest frame that a packet of the NIC's can hold. Returns the port that it
 * was sent to, -1 if it is no datagram of UDP.
 */
OL_INLINE int ol_datagram_read(const __u8 *data, __u32 len, __u32 segs, __u32 whole,
			       struct ol_datagram *d)
{
	__u32 room, form, at = ol_datagram_ports(data, &room, &form);
	const __u8 *udp = data + at;

	if (!at || at + 8 > len)
		return -1;
	d->flow = ol_flow_name(data + OL_ETH_HLEN, udp, OL_IPPROTO_UDP);
	d->len = len;
	/* udp_gro_receive_segment takes none without a checksum, without a byte, or with padding. */
	if (segs == 1 && (len > whole || !(udp[6] | udp[7]) || ol_be16(udp + 4) <= 8 ||
			  ol_be16(udp + 4) != room || at + room != len))
		form = OL_FORM_ALONE;
	d->form = form;
	return ol_be16(udp + 2);
}

/* Could GRO have joined this datagram to the last one of its flow? A shorter one ends a run. */
OL_INLINE int ol_datagram_follows(const struct ol_datagram *last, const struct ol_datagram *d)
{
	return last->len && last->flow == d->flow && d->len <= last->len &&
	       d->form != OL_FORM_ALONE && last->form == d->form &&
	       d->at - last->at <= OL_FOLLOWS_WITHIN;
}

/* May GRO have had one of the two overtake the other? */
OL_INLINE int ol_datagram_mixed(const struct ol_datagram *last, const struct ol_datagram *d)
{
	return last->len && last->flow == d->flow &&
	       (last->form != d->form || (d->form != OL_FORM_ALONE && last->outer != d->outer)) &&
	       d->at - last->at <= OL_MIXED_WITHIN;
}

#endif
