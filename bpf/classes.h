/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The priority policy put to work on the maps: which class is this flow? */
#ifndef OVERLANE_CLASSES_H
#define OVERLANE_CLASSES_H

#include "maps.h"
#include "priority.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct ol_shapes);
} ol_rule_shapes SEC(".maps");

/* Twice: for the rules in force, and for those that are to replace them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * 4 * OL_MAX_RULES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ol_rule_key);
	__type(value, struct ol_rule);
} ol_rules SEC(".maps");

/* When a core last saw a frame of the latency class, ns. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} ol_latency_seen SEC(".maps");

/* The class of a flow by the rules in force. */
__noinline __u32 ol_class_of(const struct ol_flow *flow)
{
	struct ol_policy *policy = ol_get_policy();
	__u32 best = ~0U, class = OL_CLASS_BULK, table, i;
	struct ol_rule_key key = {};
	struct ol_shapes *shapes;
	struct ol_rule *rule;

	if (!policy || !flow)
		return OL_CLASS_BULK;
	table = policy->rules_table & 1;
	shapes = bpf_map_lookup_elem(&ol_rule_shapes, &table);
	if (!shapes)
		return OL_CLASS_BULK;
	key.table = table;
	for (i = 0; i < OL_MAX_SHAPES && i < shapes->nr; i++) {
		key.shape = i;
		if (!ol_rule_key_of(flow, &shapes->shape[i], &key))
			continue;
		rule = bpf_map_lookup_elem(&ol_rules, &key);
		if (rule && rule->at < best) {
			best = rule->at;
			class = rule->class;
		}
	}
	return class;
}

static __always_inline void ol_saw_latency(__u64 now)
{
	__u32 zero = 0;
	__u64 *seen = bpf_map_lookup_elem(&ol_latency_seen, &zero);

	if (seen)
		*seen = now;
}

/* Has this core seen latency traffic lately? */
static __always_inline int ol_latency_about(const struct ol_policy *policy, __u64 now)
{
	__u32 zero = 0;
	__u64 *seen = bpf_map_lookup_elem(&ol_latency_seen, &zero);

	return seen && *seen && now - *seen < (__u64)policy->latency_window_us * 1000;
}

#endif
