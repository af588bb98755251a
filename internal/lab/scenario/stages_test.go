// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"strings"
	"testing"
)

func TestStacksBelongToStepsOfThePath(t *testing.T) {
	const thread = " __local_bh_enable_ip napi_threaded_poll_loop napi_threaded_poll kthread"
	const softirq = " net_rx_action handle_softirqs do_softirq.part.0" + thread
	const outer = " ip_protocol_deliver_rcu ip_local_deliver ip_rcv __netif_receive_skb_one_core netif_receive_skb_list_internal veth_poll __napi_poll" + thread
	for stack, want := range map[string]string{
		"memcpy_orig veth_poll __napi_poll" + thread:                                                                     "NIC, driver and redirect",
		"kmem_cache_alloc_bulk_noprof veth_xdp_rcv veth_poll __napi_poll" + thread:                                       "NIC, skb",
		"csum_partial udp4_gro_receive inet_gro_receive dev_gro_receive napi_gro_receive veth_poll" + thread:             "NIC, GRO",
		"fib_table_lookup ip_route_input_slow ip_route_input_noref ip_rcv_finish_core ip_rcv" + thread:                   "outer IP",
		"__udp4_lib_rcv udp_rcv" + outer:                                                                                 "outer UDP",
		"skb_scrub_packet vxlan_rcv udp_queue_rcv_one_skb udp_queue_rcv_skb udp_unicast_rcv_skb __udp4_lib_rcv" + outer:  "decapsulation",
		"gro_cells_receive vxlan_rcv udp_queue_rcv_one_skb" + outer:                                                      "gro_cells, enqueue",
		"dev_gro_receive napi_gro_receive gro_cell_poll __napi_poll" + softirq:                                           "inner GRO",
		"br_fdb_find_rcu br_handle_frame_finish br_handle_frame __netif_receive_skb_core gro_cell_poll" + softirq:        "bridge",
		"nf_hook_slow br_nf_pre_routing br_handle_frame gro_cell_poll" + softirq:                                         "bridge netfilter",
		"eth_type_trans __dev_forward_skb2 veth_xmit dev_hard_start_xmit br_dev_queue_push_xmit gro_cell_poll" + softirq: "veth",
		"_raw_spin_lock enqueue_to_backlog netif_rx_internal __netif_rx veth_xmit gro_cell_poll" + softirq:               "RPS and backlog, enqueue",
		"bpf_prog_6deef7357e7b4530_ol_pod_out tcx_run veth_xmit gro_cell_poll" + softirq:                                 "overlane and other BPF",
		"skb_segment __udp_gso_segment udp_queue_rcv_skb process_backlog __napi_poll" + softirq:                          "pod, segmentation",
		"sock_def_readable __udp_enqueue_schedule_skb udp_queue_rcv_one_skb process_backlog" + softirq:                   "pod, UDP and socket",
		"ip_rcv_core ip_rcv __netif_receive_skb process_backlog __napi_poll" + softirq:                                   "pod, IP",
		"kfree_skb_reason udp_queue_rcv_one_skb process_backlog" + softirq:                                               "free",
		"_raw_spin_unlock net_rx_action handle_softirqs":                                                                 "polling",
		"ip_rcv_core ip_rcv __netif_receive_skb napi_gro_receive veth_poll __napi_poll" + softirq:                        "pod, IP",
		"bpf_test_run_xdp_live veth_xdp_xmit":                                                                            "",
		"do_idle cpu_startup_entry":                                                                                      "",
	} {
		if got := stepOf(strings.Fields(stack)); got != want {
			t.Errorf("%s\n is %q, want %q", stack, got, want)
		}
	}
}

func TestEveryStepHasALineInTheTable(t *testing.T) {
	names := map[string]bool{}
	for _, n := range StageNames() {
		if names[n] {
			t.Errorf("%s twice", n)
		}
		names[n] = true
	}
	for _, s := range steps {
		if !names[s.name] {
			t.Errorf("%s is not shown", s.name)
		}
	}
}
