/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STUB_BPF_TRACING_H
#define STUB_BPF_TRACING_H

#define BPF_PROG(name, args...) name(args)

#endif
