/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#ifndef STUB_BPF_CORE_READ_H
#define STUB_BPF_CORE_READ_H

#define MODEL_READ(p, field)                                                              \
	({                                                                                \
		__typeof__(p) _p = (p);                                                   \
		model_step();                                                             \
		__typeof__(_p->field) _v = *(volatile __typeof__(_p->field) *)&_p->field; \
		model_step();                                                             \
		_v;                                                                       \
	})
#define MODEL_READ_FROM(p, pointer, field) MODEL_READ(MODEL_READ(p, pointer), field)
#define MODEL_READ_AS(_1, _2, name, ...) name
#define BPF_CORE_READ(p, ...) \
	MODEL_READ_AS(__VA_ARGS__, MODEL_READ_FROM, MODEL_READ, )(p, __VA_ARGS__)
#define bpf_core_field_exists(field) 0
#define bpf_core_field_offset(type, field) __builtin_offsetof(type, field)

#endif
