/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STUB_BPF_CORE_READ_H
#define STUB_BPF_CORE_READ_H

#define BPF_CORE_READ(p, field)                                                              \
	({                                                                                   \
		model_step();                                                                \
		__typeof__((p)->field) _v = *(volatile __typeof__((p)->field) *)&(p)->field; \
		model_step();                                                                \
		_v;                                                                          \
	})
#define bpf_core_field_exists(field) 0
#define bpf_core_field_offset(type, field) __builtin_offsetof(type, field)

#endif
