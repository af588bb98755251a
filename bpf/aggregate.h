/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Aggregation: what is counted of it. Its decisions are user space's. */
#ifndef OVERLANE_AGGREGATE_H
#define OVERLANE_AGGREGATE_H

#include "abi.h"
#include "parse.h"

/* Of packets that came out of tunnels while aggregation was on. */
struct ol_aggregated {
	__u64 packets;	 /* as they were sent */
	__u64 datagrams; /* of these, of UDP, in super-packets */
	__u64 supers;	 /* these */
};

/* Is it UDP, as far as GRO would have aggregated it: no VLAN, options or extension headers? */
OL_INLINE int ol_is_udp(const __u8 *data, const __u8 *end)
{
	__u16 proto;

	if (data + OL_ETH_HLEN + 20 > end)
		return 0;
	proto = ol_be16(data + 12);
	if (proto == OL_ETH_P_IP)
		return data[OL_ETH_HLEN + 9] == OL_IPPROTO_UDP;
	return proto == OL_ETH_P_IPV6 && data[OL_ETH_HLEN + 6] == OL_IPPROTO_UDP;
}

#endif
