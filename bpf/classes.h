/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The rules put to work on the maps: which class is this flow? */
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

/* The class of a flow by one of the tables of rules. */
__noinline __u32 ol_class_of(const struct ol_flow *flow, __u32 table)
{
	__u32 best = ~0U, class = OL_CLASS_BULK, i;
	struct ol_rule_key key = {};
	struct ol_shapes *shapes;
	struct ol_rule *rule;

	table &= 1;
	if (!flow)
		return OL_CLASS_BULK;
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

#endif
