/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#ifndef STUB_BPF_TRACING_H
#define STUB_BPF_TRACING_H

#define BPF_PROG(name, args...) name(args)

#endif
