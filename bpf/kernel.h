/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The few kernel structures that the programs read, by CO-RE. */
#ifndef OVERLANE_KERNEL_H
#define OVERLANE_KERNEL_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* As linux/bpf.h has it, in an enum that came with tcx. */
#define TCX_NEXT -1
#define TCX_DROP 2

#define OL_CORE __attribute__((preserve_access_index))

#define OL_MAP(kind, name, entries, key_type, value_type) \
	struct {                                          \
		__uint(type, BPF_MAP_TYPE_##kind);        \
		__uint(max_entries, entries);             \
		__type(key, key_type);                    \
		__type(value, value_type);                \
	} name SEC(".maps")

/* What an array has at a place. */
static __always_inline void *ol_at(void *map, __u32 place)
{
	return bpf_map_lookup_elem(map, &place);
}

/* Adds to a number of an array. */
static __always_inline void ol_add(void *map, __u32 place, __u64 n)
{
	__u64 *v = ol_at(map, place);

	if (v)
		*v += n;
}

struct sk_buff_head {
	__u32 qlen;
} OL_CORE;

struct ns_common {
	unsigned int inum;
} OL_CORE;

struct net {
	struct ns_common ns;
} OL_CORE;

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} OL_CORE;

#define OL_NAPI_SCHED 1 /* bit NAPI_STATE_SCHED of state */

struct napi_struct {
	unsigned long state;
	struct net_device *dev;
	unsigned long gro_bitmask;
} OL_CORE;

/* 6.15 moved the GRO part into a node of its own. */
struct gro_node___new {
	unsigned long bitmask;
} OL_CORE;

struct napi_struct___new {
	struct gro_node___new gro;
} OL_CORE;

struct gro_cell {
	struct sk_buff_head napi_skbs;
	struct napi_struct napi;
} OL_CORE;

struct ol_atomic {
	int counter;
} OL_CORE;

struct softnet_data {
	unsigned int input_queue_head;
	unsigned int input_queue_tail;
	unsigned int cpu;
	struct napi_struct backlog;
	struct ol_atomic dropped;
} OL_CORE;

/* 6.18 counts drops in two places. */
struct numa_drop_counters___new {
	struct ol_atomic drops0;
	struct ol_atomic drops1;
} OL_CORE;

struct softnet_data___new {
	struct numa_drop_counters___new drop_counters;
} OL_CORE;

struct task_struct {
	int pid;
	unsigned int policy;
	unsigned int flags;
	unsigned int __state;
} OL_CORE;

#define OL_TASK_INTERRUPTIBLE 1

struct ptr_ring {
	int producer;
	int consumer_head;
	int consumer_tail;
	int size;
	int batch;
	void **queue;
} OL_CORE;

struct bpf_cpu_map_entry {
	struct ptr_ring *queue;
	struct task_struct *kthread;
} OL_CORE;

struct bpf_cpu_map {
	struct bpf_cpu_map_entry **cpu_map;
} OL_CORE;

#endif
