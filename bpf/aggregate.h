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
	__u64 datagrams; /* of these, of UDP, in super-packets */
	__u64 supers;	 /* these */
	__u64 follows;	 /* while it is watched: datagrams that GRO could have joined to another */
};

/* A datagram, as far as GRO compares it with the next of its flow. */
struct ol_datagram {
	__u64 flow; /* addresses and ports, mixed */
	__u32 len;  /* of the frame; 0: none */
	__u32 at;   /* packets that had come out of tunnels on this core */
};

/*
 * Of packets to which no NIC has given different hashes GRO holds eight that do not belong
 * together, and then lets go of the oldest (net/core/gro.c, MAX_GRO_SKBS).
 */
#define OL_FOLLOWS_WITHIN 8

/*
 * A flow's addresses, protocol and ports, mixed; 0 of what has none: other protocols, options,
 * fragments.
 */
OL_INLINE __u64 ol_mixed_flow(const __u8 *data, const __u8 *end)
{
	const __u8 *ip = data + OL_ETH_HLEN, *l4;
	__u64 mixed = 0;
	__u8 proto;
	__u16 kind;
	int i;

	if (ip + 20 + 4 > end)
		return 0;
	kind = ol_be16(data + 12);
	if (kind == OL_ETH_P_IP) {
		if (ip[0] != 0x45 || ol_be16(ip + 6) & 0x3fff)
			return 0;
		proto = ip[9];
		mixed = (__u64)ol_word(ip + 12) << 32 | ol_word(ip + 16);
		l4 = ip + 20;
	} else {
		if (kind != OL_ETH_P_IPV6 || ip + 40 + 4 > end)
			return 0;
		proto = ip[6];
		for (i = 8; i < 40; i += 8)
			mixed = mixed * 31 + ((__u64)ol_word(ip + i) << 32 | ol_word(ip + i + 4));
		l4 = ip + 40;
	}
	if (proto != OL_IPPROTO_TCP && proto != OL_IPPROTO_UDP)
		return 0;
	mixed = (mixed ^ ol_word(l4) + proto) * 0x9e3779b97f4a7c15ULL;
	return mixed + !mixed;
}

/* Of UDP, as far as GRO would join it: no VLAN, options, fragments or extension headers? */
OL_INLINE int ol_datagram_of(const __u8 *data, const __u8 *end, struct ol_datagram *d)
{
	const __u8 *ip = data + OL_ETH_HLEN;

	d->flow = ol_mixed_flow(data, end);
	return d->flow && (ip[0] >> 4 == 4 ? ip[9] : ip[6]) == OL_IPPROTO_UDP;
}

/* Could GRO have joined this datagram to the last one of its flow? A shorter one ends a run. */
OL_INLINE int ol_datagram_follows(const struct ol_datagram *last, const struct ol_datagram *d)
{
	return last->len && last->flow == d->flow && d->len <= last->len &&
	       d->at - last->at <= OL_FOLLOWS_WITHIN;
}

#endif
