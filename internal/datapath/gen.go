// SPDX-License-Identifier: Apache-2.0

package datapath

//go:generate go tool bpf2go -tags linux -target bpfel -cc clang-19 -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -type ol_policy -type ol_tunnel -type ol_cell_key -type ol_cpu -type ol_slot -type ol_frag -type ol_limit -type ol_stage -type ol_tunnel_kind -type ol_reason -type ol_counter -type ol_flag -type ol_core_flag -type ol_split_proto -type ol_unnumbered_by stages ../../bpf/stages.bpf.c
//go:generate go tool bpf2go -tags linux -target bpfel -cc clang-19 -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" trace ../../bpf/trace.bpf.c
//go:generate go tool bpf2go -tags linux -target bpfel -cc clang-19 -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" branches ../../bpf/branches.bpf.c
//go:generate go tool bpf2go -tags linux -target bpfel -cc clang-19 -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" underlay ../../bpf/underlay.bpf.c
//go:generate go tool bpf2go -tags linux -target bpfel -cc clang-19 -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -type ol_prio -type ol_shapes -type ol_rule_key -type ol_rule -type ol_class -type ol_way -type ol_sparse -type ol_limit priority ../../bpf/priority.bpf.c
//go:generate go tool bpf2go -tags linux -target bpfel -cc clang-19 -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -type ol_shortcut -type ol_shortcut_key sync ../../bpf/sync.bpf.c
//go:generate go tool bpf2go -tags linux -target bpfel -cc clang-19 -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -no-global-types -type ol_merge_counter -type ol_merge_point -type ol_limit merge ../../bpf/merge.bpf.c
