// SPDX-License-Identifier: Apache-2.0

package datapath

// `make generate` tells compiler and flags.
//go:generate -command bpf2go go tool bpf2go -cc $BPF2GO_CC -strip $BPF2GO_STRIP -tags linux -target bpfel
//go:generate bpf2go -type ol_policy -type ol_set -type ol_tunnel -type ol_cell_key -type ol_cpu -type ol_slot -type ol_limit -type ol_stage -type ol_reason -type ol_counter -type ol_flag -type ol_split_proto -type ol_unnumbered_by -type ol_port stages ../../bpf/stages.bpf.c
//go:generate bpf2go trace ../../bpf/trace.bpf.c
//go:generate bpf2go branches ../../bpf/branches.bpf.c
//go:generate bpf2go -type ol_express_key -type ol_express_entry -type ol_express_unfit underlay ../../bpf/underlay.bpf.c
//go:generate bpf2go -type ol_prio -type ol_shapes -type ol_rule_key -type ol_rule -type ol_class -type ol_verdict -type ol_sparse -type ol_limit priority ../../bpf/priority.bpf.c
//go:generate bpf2go -type ol_shortcut -type ol_shortcut_key sync ../../bpf/sync.bpf.c
//go:generate bpf2go -no-global-types -type ol_merge_counter -type ol_resequencer -type ol_limit merge ../../bpf/merge.bpf.c
//go:generate bpf2go -no-global-types -type ol_aggregated aggregate ../../bpf/aggregate.bpf.c
//go:generate bpf2go -no-global-types -type ol_census_flow census ../../bpf/census.bpf.c
//go:generate bpf2go -no-global-types -type ol_clock clock ../../bpf/clock.bpf.c
