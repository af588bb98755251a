/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The maps that the objects share; the loader creates each once. */
#ifndef OVERLANE_MAPS_H
#define OVERLANE_MAPS_H

#include "config.h"
#include "abi.h"
#include "parse.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ol_policy);
} ol_policies SEC(".maps");

/* max_entries of the per-core arrays below are set by the loader. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ol_cpu);
} ol_cpus SEC(".maps");

/* Priority, where it is in place. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ol_prio);
} ol_prios SEC(".maps");

/* Cores that are being taken offline; told by whichever core does that. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ol_leave);
} ol_leaves SEC(".maps");

/* Index: cpu * OL_MAX_TUNNELS + tunnel. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, OL_MAX_TUNNELS);
	__type(key, __u32);
	__type(value, struct ol_marks);
} ol_cell_marks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * 4 * OL_MAX_TUNNELS + 2 * OL_PORTS);
	__type(key, struct ol_cell_key);
	__type(value, __u32);
} ol_cells SEC(".maps");

/* The pods that frames go to straight from the NIC. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, OL_PORTS);
	__type(key, __u32);
	__type(value, struct ol_port);
} ol_ports SEC(".maps");

/* Index: (cpu * OL_NR_STAGES + stage) * OL_SLOTS + slot. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, OL_NR_STAGES *OL_SLOTS);
	__type(key, __u32);
	__type(value, struct ol_slot);
} ol_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, OL_SLOTS);
	__type(key, __u32);
	__type(value, struct ol_owner);
} ol_owners SEC(".maps");

/* Index: stage * OL_SLOTS + slot. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, OL_NR_STAGES *OL_SLOTS);
	__type(key, __u32);
	__type(value, struct ol_turn);
} ol_turns SEC(".maps");

/* Fragmented inner datagrams: hash of the datagram and the slot of its first fragment. */
struct ol_frag {
	__u64 datagram;
	__u32 slot;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OL_FRAGS);
	__type(key, __u32);
	__type(value, struct ol_frag);
} ol_frags SEC(".maps");

#define OL_NO_PLACE OL_ELEPHANTS

/* The last flow that a hook steered, and what came of it. Index: stage. */
struct ol_recent {
	struct ol_flow flow;
	__u32 seq;
	__u32 slot;
	__u32 lane;
	__u32 place; /* among the elephants, or OL_NO_PLACE: of the NIC's stage */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OL_NR_STAGES);
	__type(key, __u32);
	__type(value, struct ol_recent);
} ol_recents SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OL_NR_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} ol_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OL_NR_REASONS);
	__type(key, __u32);
	__type(value, __u64);
} ol_reasons SEC(".maps");

/* The lanes of the nic stage, and of bulk; filled by the loader before programs are attached. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} ol_lane_threads SEC(".maps");

/* Priority's lanes for the latency class, under NICs that no thread polls. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} ol_latency_threads SEC(".maps");

/* Packets sent to each lane, per sending core. Index: stage * OL_MAX_LANES + lane. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OL_NR_STAGES *OL_MAX_LANES);
	__type(key, __u32);
	__type(value, __u64);
} ol_lane_packets SEC(".maps");

/* Flows that are put in order again, and how they are found. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, OL_MERGES);
	__type(key, __u32);
	__type(value, struct ol_merging);
} ol_mergings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, OL_MERGES);
	__type(key, __u64);
	__type(value, __u32);
} ol_merging_of SEC(".maps");

/* Index: place among the merging, or OL_MERGES, of which nothing is ever under way. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, OL_MERGES + 1);
	__type(key, __u32);
	__type(value, struct ol_cuts);
} ol_cuts SEC(".maps");

/* Set when a resequencer ends: what is to go there goes straight on, until it is there again. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} ol_merge_ended SEC(".maps");

/* Why frames get no numbers, of enum ol_unnumbered_by. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} ol_unnumbered SEC(".maps");

/* A resequencer is no more. */
static __always_inline void ol_merge_ends(void)
{
	__u32 key = 0, *ended = bpf_map_lookup_elem(&ol_merge_ended, &key);

	if (ended)
		*(volatile __u32 *)ended = 1;
}

static __always_inline int ol_merges(void)
{
	__u32 key = 0, *ended = bpf_map_lookup_elem(&ol_merge_ended, &key);

	return ended && !*(volatile __u32 *)ended;
}

static __always_inline void ol_count(enum ol_counter c, __u64 n)
{
	__u32 key = c;
	__u64 *v = bpf_map_lookup_elem(&ol_counters, &key);

	if (v)
		*v += n;
}

static __always_inline void ol_reason(enum ol_reason r)
{
	__u32 key = r;
	__u64 *v = bpf_map_lookup_elem(&ol_reasons, &key);

	if (v)
		*v += 1;
}

static __always_inline void ol_count_lane(__u32 stage, __u32 lane, __u64 n)
{
	__u32 key = stage * OL_MAX_LANES + lane;
	__u64 *v = bpf_map_lookup_elem(&ol_lane_packets, &key);

	if (v)
		*v += n;
}

static __always_inline struct ol_policy *ol_get_policy(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&ol_policies, &key);
}

static __always_inline struct ol_cpu *ol_get_cpu(__u32 cpu)
{
	return bpf_map_lookup_elem(&ol_cpus, &cpu);
}

static __always_inline struct ol_marks *ol_get_cell_marks(__u32 cpu, __u32 tunnel)
{
	__u32 key = cpu * OL_MAX_TUNNELS + tunnel;

	return bpf_map_lookup_elem(&ol_cell_marks, &key);
}

static __always_inline struct ol_slot *ol_get_slot(__u32 cpu, __u32 stage, __u32 slot)
{
	__u32 key = (cpu * OL_NR_STAGES + stage) * OL_SLOTS + slot;

	return bpf_map_lookup_elem(&ol_slots, &key);
}

static __always_inline struct ol_turn *ol_get_turn(__u32 stage, __u32 slot)
{
	__u32 key = stage * OL_SLOTS + slot;

	return bpf_map_lookup_elem(&ol_turns, &key);
}

#endif
