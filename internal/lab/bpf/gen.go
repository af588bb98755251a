// SPDX-License-Identifier: Apache-2.0

// Package bpf holds the kernel side of the lab: generator, checker, CPU clock.
// Nothing in it is shared with the product, which it judges.
package bpf

//go:generate go tool bpf2go -cc $BPF2GO_CC -strip $BPF2GO_STRIP -target bpfel -type template Gen gen.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu
//go:generate go tool bpf2go -cc $BPF2GO_CC -strip $BPF2GO_STRIP -target bpfel -type flow_check Check check.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu
//go:generate go tool bpf2go -cc $BPF2GO_CC -strip $BPF2GO_STRIP -target bpfel -type core CPU cpu.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu
//go:generate go tool bpf2go -cc $BPF2GO_CC -strip $BPF2GO_STRIP -target bpfel Pass pass.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu
//go:generate go tool bpf2go -cc $BPF2GO_CC -strip $BPF2GO_STRIP -target bpfel -type place Profile profile.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu
