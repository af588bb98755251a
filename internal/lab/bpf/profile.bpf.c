// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* Where cores are when the clock looks at them: kernel stacks, counted. */

#include "lab.h"

#define DEPTH 64

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__type(key, __u32);
	__type(value, __u64[DEPTH]);
	__uint(max_entries, 16384);
} stacks SEC(".maps");

/* By number of the stack, and core. */
struct place {
	__u32 stack;
	__u32 core;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct place);
	__type(value, __u64);
	__uint(max_entries, 16384);
} seen SEC(".maps");

/* Stacks that there was no room for. */
volatile __u64 missed = 0;

SEC("perf_event")
int profile(void *ctx)
{
	__s32 at = bpf_get_stackid(ctx, &stacks, 0);
	__u64 one = 1, *n;
	struct place key = {at, bpf_get_smp_processor_id()};

	if (at < 0) {
		__sync_fetch_and_add(&missed, 1);
		return 0;
	}
	n = bpf_map_lookup_elem(&seen, &key);
	if (n)
		__sync_fetch_and_add(n, 1);
	else if (bpf_map_update_elem(&seen, &key, &one, BPF_NOEXIST))
		__sync_fetch_and_add(&missed, 1);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
