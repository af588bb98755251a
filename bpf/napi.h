/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a NAPI whose poll has just ended tells. */
#ifndef OVERLANE_NAPI_H
#define OVERLANE_NAPI_H

#include "kernel.h"
#include "maps.h"

/* Packets that GRO still holds after a poll. */
static __always_inline int ol_gro_holds(struct napi_struct *napi)
{
	struct napi_struct___new *n = (void *)napi;

	if (bpf_core_field_exists(n->gro))
		return BPF_CORE_READ(n, gro.bitmask) != 0;
	return BPF_CORE_READ(napi, gro_bitmask) != 0;
}

/*
 * A NAPI is done with what it held, or gone, when it was not seen for so long, and as many others were:
 * what this core did not poll in all that time it may still hold. One for which there was no place is by the time alone.
 */
#define OL_HOLDING_NS 200000000
#define OL_HOLDING_POLLS 256

/*
 * A poll of a NIC ended. Does GRO hold packets of any NIC of this core? A full poll may leave some
 * there, and so may any with a gro_flush_timeout or a busy poll. Other NICs' own state tells of
 * theirs: what a full poll leaves is often let go of behind the tracepoint.
 */
static __always_inline int ol_nic_holds(struct ol_holding *h, struct napi_struct *polled, __u64 now)
{
	int i, any = 0, new = ol_gro_holds(polled);

	for (i = 0; i < OL_HOLDING; i++) {
		struct napi_struct *n = (void *)h->napi[i];

		/* The memory of one that is gone may be another's. */
		if (n && (n == polled ||
			  (++h->others[i] > OL_HOLDING_POLLS && now - h->seen[i] > OL_HOLDING_NS) ||
			  !ol_gro_holds(n)))
			n = NULL;
		if (!n && new) {
			n = polled;
			new = 0;
			h->seen[i] = now;
			h->others[i] = 0;
		}
		h->napi[i] = (__u64)n;
		any |= n != NULL;
	}
	if (new)
		h->more = now;
	return any || (h->more && now - h->more < OL_HOLDING_NS);
}

/* What a device is to us, as struct ol_cell_key has it; NULL: nothing. */
static __always_inline __u32 *ol_cell_of(const struct net_device *dev)
{
	struct ol_cell_key key = {.ifindex = dev->ifindex, .netns = dev->nd_net.net->ns.inum};

	return bpf_map_lookup_elem(&ol_cells, &key);
}

/* The tunnel whose GRO cell this NAPI is, OL_MAX_TUNNELS for an underlay's, or -1. */
static __always_inline int ol_device_of(struct napi_struct *napi)
{
	struct net_device *dev = napi->dev;
	__u32 *index = dev ? ol_cell_of(dev) : NULL;

	return index ? (int)*index : -1;
}

/* This core's softnet_data, if this NAPI is its backlog: the only one without a device. */
static __always_inline struct softnet_data *ol_backlog_of(struct napi_struct *napi, __u32 this_cpu)
{
	struct softnet_data *sd =
		(void *)napi - bpf_core_field_offset(struct softnet_data, backlog);

	if (napi->dev || BPF_CORE_READ(sd, cpu) != this_cpu)
		return NULL;
	return sd;
}

#endif
