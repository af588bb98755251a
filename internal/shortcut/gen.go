// SPDX-License-Identifier: Apache-2.0

package shortcut

//go:generate go tool bpf2go -tags linux -target bpfel -cc clang-19 -cflags "-O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -type ol_attached hooks ../../bpf/hooks.bpf.c
