/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Stands in for libbpf's header, so that the kernel side's own files compile
 * into the model. Each helper is a point at which the model may let another core
 * go on.
 */
#ifndef STUB_BPF_HELPERS_H
#define STUB_BPF_HELPERS_H

#include <linux/types.h>

void model_step(void);
void model_pause(void);
__u32 model_this_cpu(void);
__u64 model_clock(void);
__u64 model_task(void);
void *model_lookup(const void *map, const void *key);

#define SEC(name)
#define __uint(name, val) int(*name)[val]
#define __type(name, val) __typeof__(val) *name
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define barrier_var(var) __asm__ volatile("" : "+r"(var))

#define bpf_map_lookup_elem(map, key) model_lookup(map, key)
#define bpf_get_smp_processor_id() model_this_cpu()
#define bpf_ktime_get_ns() model_clock()
#define bpf_ktime_get_coarse_ns() model_clock()
/* A core that loops takes no time from others. */
#define bpf_loop(nr, step, ctx, flags)                                \
	do {                                                          \
		for (__u32 i_ = 0; i_ < (nr) && !step(i_, ctx); i_++) \
			model_pause();                                \
	} while (0)
#define bpf_probe_read_kernel(to, n, from) \
	(model_step(), __builtin_memcpy(to, (const void *)(from), n), model_step(), 0)
#define bpf_probe_read_kernel_str(to, n, from) ((void)(to), (void)(n), (void)(from), 0)
#define bpf_get_current_task_btf() ((void *)0)
#define bpf_get_current_task() model_task()

#endif
