/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* From the host's namespace straight into a pod's. */
#ifndef OVERLANE_PEER_H
#define OVERLANE_PEER_H

#include "kernel.h"

#define OL_PACKET_HOST 0 /* linux/if_packet.h */

/*
 * Hands a packet to the other end of a veth, as the veth would (____dev_forward_skb, include/linux/
 * netdevice.h). The other end is in another namespace, or bpf_redirect_peer drops the packet. Before
 * Linux 6.12.29 that leaves the packet as the device took it before, for another host; on no kernel
 * does it take off mark and priority, which are the host's. Connection, route and extensions have
 * gone where the tunnel or a veth of ours took the packet.
 */
static __always_inline int ol_to_peer(struct __sk_buff *skb, __u32 host_end)
{
	bpf_skb_change_type(skb, OL_PACKET_HOST);
	skb->tc_index = 0; /* ours */
	skb->mark = 0;
	skb->priority = 0;
	return bpf_redirect_peer(host_end, 0);
}

#endif
