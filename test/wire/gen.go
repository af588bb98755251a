// SPDX-License-Identifier: Apache-2.0

// Package wire has what tests put into the path of packets: loss, and a relay between devices.
package wire

//go:generate go tool bpf2go -no-global-types -cc $BPF2GO_CC -strip $BPF2GO_STRIP -target bpfel wire wire.bpf.c -- -O2 -g -Wall -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
