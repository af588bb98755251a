/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The maps that the objects share; the loader creates each once. */
#ifndef OVERLANE_MAPS_H
#define OVERLANE_MAPS_H

#include "config.h"
#include "abi.h"
#include "parse.h"

OL_MAP(ARRAY, ol_policies, 1, __u32, struct ol_policy);

/* max_entries of the per-core arrays below are set by the loader. */
OL_MAP(ARRAY, ol_cpus, 1, __u32, struct ol_cpu);

/* Priority, where it is in place. */
OL_MAP(ARRAY, ol_prios, 1, __u32, struct ol_prio);

/* Cores that are being taken offline; told by whichever core does that. */
OL_MAP(ARRAY, ol_leaves, 1, __u32, struct ol_leave);

/* Index: cpu * OL_MAX_TUNNELS + tunnel. */
OL_MAP(ARRAY, ol_cell_marks, OL_MAX_TUNNELS, __u32, struct ol_marks);

OL_MAP(HASH, ol_cells, 2 * 4 * OL_MAX_TUNNELS + 2 * OL_PORTS, struct ol_cell_key, __u32);

/* The pods that frames go to straight from the NIC. */
OL_MAP(ARRAY, ol_ports, OL_PORTS, __u32, struct ol_port);

/* Index: (cpu * OL_NR_STAGES + stage) * OL_SLOTS + slot. */
OL_MAP(ARRAY, ol_slots, (OL_NR_STAGES * OL_SLOTS), __u32, struct ol_slot);

OL_MAP(ARRAY, ol_owners, OL_SLOTS, __u32, struct ol_owner);

/* Index: stage * OL_SLOTS + slot. */
OL_MAP(ARRAY, ol_turns, (OL_NR_STAGES * OL_SLOTS), __u32, struct ol_turn);

/* A fragmented inner datagram, as its first fragment told. */
struct ol_frag {
	__u64 datagram; /* hash of what names it */
	__u64 flow;	/* hash */
	__u32 class;	/* as priority judged the flow; bulk, if it did not */
	__u32 rule;	/* as in struct ol_judgement */
};

OL_MAP(PERCPU_ARRAY, ol_frags, OL_FRAGS, __u32, struct ol_frag);

#define OL_NO_PLACE OL_ELEPHANTS

/* The last flow that a hook steered, and what came of it. Index: stage. */
struct ol_recent {
	struct ol_flow flow;
	__u32 seq;
	__u32 slot;
	__u32 lane;
	__u32 place; /* among the elephants, or OL_NO_PLACE: of the NIC's stage */
};

OL_MAP(PERCPU_ARRAY, ol_recents, OL_NR_STAGES, __u32, struct ol_recent);

OL_MAP(PERCPU_ARRAY, ol_counters, OL_NR_COUNTERS, __u32, __u64);

OL_MAP(PERCPU_ARRAY, ol_reasons, OL_NR_REASONS, __u32, __u64);

/* The lanes of the nic stage, and of bulk; filled by the loader before programs are attached. */
OL_MAP(CPUMAP, ol_lane_threads, 1, __u32, struct bpf_cpumap_val);

/* Priority's lanes for the latency class, under NICs that no thread polls. */
OL_MAP(CPUMAP, ol_latency_threads, 1, __u32, struct bpf_cpumap_val);

/* Packets sent to each lane, per sending core. Index: stage * OL_MAX_LANES + lane. */
OL_MAP(PERCPU_ARRAY, ol_lane_packets, (OL_NR_STAGES * OL_MAX_LANES), __u32, __u64);

/* Flows that are put in order again, and how they are found. */
OL_MAP(ARRAY, ol_mergings, OL_MERGES, __u32, struct ol_merging);

OL_MAP(HASH, ol_merging_of, OL_MERGES, __u64, __u32);

/* Index: place among the merging, or OL_MERGES, of which nothing is ever under way. */
OL_MAP(ARRAY, ol_cuts, OL_MERGES + 1, __u32, struct ol_cuts);

/* Set when a resequencer ends: what is to go there goes straight on, until it is there again. */
OL_MAP(ARRAY, ol_merge_ended, 1, __u32, __u32);

/* Frames that came without headers in their first buffer, up to enough. Index: ifindex of the NIC. */
OL_MAP(HASH, ol_headless, 64, __u32, __u32);

/* NICs by which frames came whose checksums are not in them yet. Index: ifindex of the NIC. */
OL_MAP(HASH, ol_unfinished, 64, __u32, __u32);

/* Why frames get no numbers, of enum ol_unnumbered_by. */
OL_MAP(ARRAY, ol_unnumbered, 1, __u32, __u32);

/* A resequencer is no more. */
static __always_inline void ol_merge_ends(void)
{
	__u32 *ended = ol_at(&ol_merge_ended, 0);

	if (ended)
		*(volatile __u32 *)ended = 1;
}

static __always_inline int ol_merges(void)
{
	__u32 *ended = ol_at(&ol_merge_ended, 0);

	return ended && !*(volatile __u32 *)ended;
}

static __always_inline void ol_count(enum ol_counter c, __u64 n)
{
	ol_add(&ol_counters, c, n);
}

static __always_inline void ol_reason(enum ol_reason r)
{
	ol_add(&ol_reasons, r, 1);
}

static __always_inline void ol_count_lane(__u32 stage, __u32 lane, __u64 n)
{
	ol_add(&ol_lane_packets, stage * OL_MAX_LANES + lane, n);
}

static __always_inline struct ol_policy *ol_get_policy(void)
{
	return ol_at(&ol_policies, 0);
}

static __always_inline struct ol_cpu *ol_get_cpu(__u32 cpu)
{
	return ol_at(&ol_cpus, cpu);
}

static __always_inline struct ol_marks *ol_get_cell_marks(__u32 cpu, __u32 tunnel)
{
	return ol_at(&ol_cell_marks, cpu * OL_MAX_TUNNELS + tunnel);
}

static __always_inline struct ol_slot *ol_get_slot(__u32 cpu, __u32 stage, __u32 slot)
{
	return ol_at(&ol_slots, (cpu * OL_NR_STAGES + stage) * OL_SLOTS + slot);
}

static __always_inline struct ol_turn *ol_get_turn(__u32 stage, __u32 slot)
{
	return ol_at(&ol_turns, stage * OL_SLOTS + slot);
}

#endif
