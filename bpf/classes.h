/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The rules put to work on the maps: which one fits this flow? */
#ifndef OVERLANE_CLASSES_H
#define OVERLANE_CLASSES_H

#include "maps.h"
#include "priority.h"

OL_MAP(ARRAY, ol_rule_shapes, 2, __u32, struct ol_shapes);

/* Twice: for the rules in force, and for those that are to replace them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * 4 * OL_MAX_RULES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ol_rule_key);
	__type(value, struct ol_rule);
} ol_rules SEC(".maps");

/*
 * The first rule of a table that fits a flow (host: in no tunnel): its class in the
 * low byte, above it one more than its index in ol_rule_frames; 0 if none fits.
 */
__noinline __u32 ol_rule_of(const struct ol_flow *flow, int host, __u32 table)
{
	__u32 best = OL_MAX_RULES, found = 0, i;
	struct ol_rule_key key = {};
	struct ol_shapes *shapes;
	struct ol_rule *rule;

	table &= 1;
	if (!flow)
		return 0;
	shapes = bpf_map_lookup_elem(&ol_rule_shapes, &table);
	if (!shapes)
		return 0;
	key.table = table;
	for (i = 0; i < OL_MAX_SHAPES && i < shapes->nr; i++) {
		key.shape = i;
		if (!ol_rule_key_of(flow, host, &shapes->shape[i], &key))
			continue;
		rule = bpf_map_lookup_elem(&ol_rules, &key);
		if (rule && rule->at < best) {
			best = rule->at;
			found = (table * OL_MAX_RULES + best + 1) << 8 | (rule->class & 0xff);
		}
	}
	return found;
}

#endif
