// SPDX-License-Identifier: Apache-2.0

package shortcut

// `make generate` tells compiler and flags.
//go:generate go tool bpf2go -cc $BPF2GO_CC -strip $BPF2GO_STRIP -tags linux -target bpfel -type ol_attached hooks ../../bpf/hooks.bpf.c
