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

/* The tunnel whose GRO cell this NAPI is, OL_MAX_TUNNELS for an underlay's, or -1. */
static __always_inline int ol_device_of(struct napi_struct *napi)
{
	struct ol_cell_key key = {};
	struct net_device *dev = napi->dev;
	__u32 *index;

	if (!dev)
		return -1;
	key.ifindex = dev->ifindex;
	key.netns = dev->nd_net.net->ns.inum;
	index = bpf_map_lookup_elem(&ol_cells, &key);
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
