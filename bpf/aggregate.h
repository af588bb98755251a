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
 * Names a packet's flow, 0 if it is not plain (ol_plain_ports). Returns whether it is of UDP, as far as GRO
 * would join it.
 */
OL_INLINE int ol_datagram_of(const __u8 *data, const __u8 *end, struct ol_datagram *d)
{
	__u8 proto;
	const __u8 *l4 = ol_plain_ports(data, end, &proto), *ip = data + OL_ETH_HLEN;
	__u64 mixed;
	int i;

	d->flow = 0;
	if (!l4)
		return 0;
	/* All of IPv4's addresses, and the last of IPv6's. */
	mixed = (__u64)ol_word(l4 - 8) << 32 | ol_word(l4 - 4);
	if (ip[0] >> 4 == 6)
		for (i = 8; i < 32; i += 8)
			mixed = mixed * 31 + ((__u64)ol_word(ip + i) << 32 | ol_word(ip + i + 4));
	mixed = (mixed ^ ol_word(l4) + proto) * 0x9e3779b97f4a7c15ULL;
	d->flow = mixed + !mixed;
	return proto == OL_IPPROTO_UDP;
}

/* Could GRO have joined this datagram to the last one of its flow? A shorter one ends a run. */
OL_INLINE int ol_datagram_follows(const struct ol_datagram *last, const struct ol_datagram *d)
{
	return last->len && last->flow == d->flow && d->len <= last->len &&
	       d->at - last->at <= OL_FOLLOWS_WITHIN;
}

#endif
