// SPDX-License-Identifier: Apache-2.0

package stages

//go:generate go tool bpf2go -no-global-types -cc $BPF2GO_CC -strip $BPF2GO_STRIP -target bpfel -type role -type place -type device -type poll -type core tracer tracer.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
