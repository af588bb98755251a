// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"strings"

	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/internal/lab/traffic"
)

// step is a part of the receive path, as a profile shows it.
type step struct {
	name string
	// in tells what is being polled: the NIC, a tunnel's cell, a core's backlog or the pod's
	// own queue; "" for any.
	in poll
	// by are functions, or with a * in the end beginnings of their names, that do it.
	by []string
}

type poll string

const (
	nicPoll     poll = "nic"
	tunnelPoll  poll = "tunnel"
	backlogPoll poll = "backlog"
	podPoll     poll = "pod"
)

// polls are the functions by which what is polled is known: the innermost of them in a stack.
// The wire is polled by a thread of its own, any other veth in softirq.
var polls = []struct {
	by string
	is poll
}{
	{"gro_cell_poll", tunnelPoll}, {"process_backlog", backlogPoll}, {"cpu_map_kthread_run", nicPoll},
	{"net_rx_action", podPoll}, {"napi_threaded_poll_loop", nicPoll}, {"napi_threaded_poll", nicPoll},
}

// steps in the order of the path. Of a stack's functions the innermost that is in one of them
// decides; where it is in several, the first.
var steps = []step{
	{"overlane and other BPF", "", []string{"bpf_prog_*", "bpf_dispatcher_*"}},
	{"tracing", "", []string{"bpf_trace_run*", "__bpf_trace_*", "trace_call_bpf", "perf_trace_*"}},
	{"free", "", []string{"kfree_skb*", "consume_skb", "__kfree_skb", "sk_skb_reason_drop", "skb_release_*", "skb_free_head", "napi_consume_skb", "__xdp_return", "xdp_return_frame*", "kfree_skb_partial", "skb_attempt_defer_free"}},
	{"RPS and backlog, enqueue", "", []string{"netif_rx", "netif_rx_internal", "__netif_rx", "enqueue_to_backlog", "get_rps_cpu", "net_rps_send_ipi", "net_rps_action_and_irq_enable"}},

	{"NIC, skb", nicPoll, []string{"xdp_build_skb_from_frame", "__xdp_build_skb_from_frame", "veth_xdp_rcv_skb", "veth_xdp_rcv_bulk_skb", "build_skb*", "__build_skb*", "kmem_cache_alloc_bulk*", "napi_skb_cache_get*"}},
	{"NIC, driver and redirect", nicPoll, []string{"veth_poll", "veth_xdp_rcv", "veth_xdp_rcv_one", "xdp_do_redirect*", "xdp_do_flush", "cpu_map_enqueue", "bq_enqueue", "bq_flush_to_queue", "cpu_map_kthread_run", "dev_map_enqueue", "bq_xmit_all", "veth_xdp_xmit", "veth_ndo_xdp_xmit", "dev_xdp_enqueue"}},
	{"NIC, GRO", nicPoll, []string{"napi_gro_receive", "gro_receive_skb", "dev_gro_receive", "inet_gro_receive", "ipv6_gro_receive", "udp4_gro_receive", "udp6_gro_receive", "udp_gro_receive", "vxlan_gro_receive", "eth_gro_receive", "tcp4_gro_receive", "tcp_gro_receive", "napi_gro_flush", "__gro_flush", "gro_complete*", "napi_gro_complete*", "skb_gro_receive", "gro_flush*"}},
	{"outer netfilter", nicPoll, []string{"nf_hook_slow*", "nft_do_chain*", "ipt_do_table", "nf_conntrack_in"}},
	{"gro_cells, enqueue", nicPoll, []string{"gro_cells_receive"}},
	{"decapsulation", nicPoll, []string{"vxlan_rcv", "geneve_udp_encap_recv", "geneve_rx"}},
	{"outer UDP", nicPoll, []string{"udp_rcv", "udpv6_rcv", "__udp4_lib_rcv", "__udp6_lib_rcv", "udp_queue_rcv_*", "udp_unicast_rcv_skb", "__udp4_lib_lookup*", "udp4_csum_init"}},
	{"outer IP", nicPoll, []string{"ip_rcv*", "ip_list_rcv*", "ip_sublist_rcv*", "ip_local_deliver*", "ip_protocol_deliver_rcu", "ip_route_input*", "fib_*", "ipv6_rcv*", "ip6_*", "inet_gso_*"}},
	{"outer receive", nicPoll, []string{"__netif_receive_skb*", "netif_receive_skb*", "gro_normal_list*", "ip_rcv_list"}},

	{"inner GRO", tunnelPoll, []string{"napi_gro_receive", "gro_receive_skb", "dev_gro_receive", "inet_gro_receive", "ipv6_gro_receive", "udp4_gro_receive", "udp_gro_receive", "tcp4_gro_receive", "tcp_gro_receive", "skb_gro_receive", "napi_gro_flush", "__gro_flush", "gro_complete*", "gro_flush*"}},
	{"veth", tunnelPoll, []string{"veth_xmit", "dev_hard_start_xmit", "__dev_queue_xmit", "validate_xmit_skb*", "__dev_forward_skb*"}},
	{"bridge netfilter", tunnelPoll, []string{"br_nf_*", "nf_hook_slow*", "ipt_do_table", "nft_do_chain*", "nf_bridge_*", "ip_sabotage_in"}},
	{"bridge", tunnelPoll, []string{"br_*", "__br_*"}},
	{"routing", tunnelPoll, []string{"ip_rcv*", "ip_forward*", "ip_output*", "ip_finish_output*", "ip_list_rcv*", "ip_sublist_rcv*", "ip_route_input*", "neigh_*"}},
	{"tunnel receive", tunnelPoll, []string{"gro_cell_poll", "__netif_receive_skb*", "netif_receive_skb*", "gro_normal_list*"}},

	{"pod, netfilter", backlogPoll, []string{"nf_hook_slow*", "nft_do_chain*", "ipt_do_table", "nf_conntrack_in"}},
	{"pod, segmentation", backlogPoll, []string{"udp_rcv_segment*", "__udp_gso_segment*", "skb_segment*", "inet_gso_segment", "udp4_ufo_fragment", "skb_gso_segment*", "__skb_gso_segment"}},
	{"pod, UDP and socket", backlogPoll, []string{"udp_*", "udpv6_*", "__udp4_lib_*", "__udp6_lib_*", "__udp_enqueue*", "sock_def_readable", "sk_filter_*", "__sk_receive_skb", "tcp_v4_rcv", "tcp_v6_rcv"}},
	{"pod, IP", backlogPoll, []string{"ip_rcv*", "ip_list_rcv*", "ip_sublist_rcv*", "ip_local_deliver*", "ip_protocol_deliver_rcu", "ip_route_input*", "fib_*", "ipv6_rcv*", "ip6_*"}},
	{"backlog, receive", backlogPoll, []string{"process_backlog", "__netif_receive_skb*", "netif_receive_skb*"}},

	{"pod, segmentation", podPoll, []string{"udp_rcv_segment*", "__udp_gso_segment*", "skb_segment*", "inet_gso_segment", "udp4_ufo_fragment", "skb_gso_segment*", "__skb_gso_segment"}},
	{"pod, GRO", podPoll, []string{"napi_gro_receive", "gro_receive_skb", "dev_gro_receive", "inet_gro_receive", "udp4_gro_receive", "udp_gro_receive", "tcp4_gro_receive", "tcp_gro_receive", "skb_gro_receive*", "napi_gro_flush", "__gro_flush", "gro_complete*", "gro_flush*"}},
	{"pod, skb", podPoll, []string{"xdp_build_skb_from_frame", "__xdp_build_skb_from_frame", "veth_xdp_rcv_one", "veth_xdp_rcv_bulk_skb", "build_skb*", "__build_skb*", "kmem_cache_alloc_bulk*"}},
	{"pod, UDP and socket", podPoll, []string{"udp_*", "udpv6_*", "__udp4_lib_*", "__udp6_lib_*", "__udp_enqueue*", "sock_def_readable", "sk_filter_*", "tcp_v4_rcv", "tcp_v6_rcv"}},
	{"pod, IP", podPoll, []string{"ip_rcv*", "ip_list_rcv*", "ip_sublist_rcv*", "ip_local_deliver*", "ip_protocol_deliver_rcu", "ip_route_input*", "fib_*", "ipv6_rcv*", "ip6_*"}},
	{"pod, receive", podPoll, []string{"veth_poll", "veth_xdp_rcv", "__netif_receive_skb*", "netif_receive_skb*", "gro_normal_list*"}},
	{"polling", "", []string{"net_rx_action", "__napi_poll", "napi_threaded_poll*", "handle_softirqs", "__do_softirq", "do_softirq*", "__local_bh_enable_ip", "napi_complete_done"}},
}

// rest is what is spent on receiving and in no step.
const rest = "other"

// stepOf says to which part of the receive path a stack belongs, "" if to none.
func stepOf(stack []string) string {
	in := poll("")
	for _, f := range stack {
		for _, p := range polls {
			if f == p.by && in == "" {
				in = p.is
			}
		}
	}
	if in == "" {
		return ""
	}
	for _, f := range stack {
		for _, s := range steps {
			if (s.in == "" || s.in == in) && s.has(f) {
				return s.name
			}
		}
	}
	return rest
}

func (s *step) has(function string) bool {
	function, _, _ = strings.Cut(function, ".") // as of a compiler's copies
	for _, by := range s.by {
		if prefix, ok := strings.CutSuffix(by, "*"); by == function || ok && strings.HasPrefix(function, prefix) {
			return true
		}
	}
	return false
}

// measureStages sends one flow above saturation and says what each step costs, in ns for each
// datagram that reaches its socket.
func measureStages(ctx context.Context, e *env) (map[string]float64, error) {
	var looks []traffic.Look
	e.profiled = &looks
	defer func() { e.profiled = nil }()
	t, err := e.live(ctx, offer{flows: e.cfg.Flows, size: e.cfg.Size, rates: e.cfg.Rates, rate: e.flood, length: e.cfg.Length})
	if err != nil {
		return nil, err
	}
	v := e.udpValues(t)
	sum := 0.0
	for _, l := range looks {
		if s := stepOf(l.Stack); s != "" {
			ns := float64(l.Spent.Nanoseconds()) / float64(t.delivered)
			v[report.StageMetric(s)] += ns
			sum += ns
		}
	}
	v[report.StageMetric(report.AllStages)] = sum
	return v, nil
}

// profile looks at what the kernel does meanwhile, if the scenario asks for it.
func (e *env) profile(wait func() error) error {
	if e.profiled == nil {
		return wait()
	}
	p, err := traffic.StartProfile()
	if err != nil {
		return err
	}
	if err := wait(); err != nil {
		return errors.Join(err, p.Close())
	}
	*e.profiled, err = p.End()
	return err
}

// StageNames lists the steps, in the order of the path, and then those of any place.
func StageNames() []string {
	var names []string
	seen := map[string]bool{}
	for _, anywhere := range []bool{false, true} {
		for _, s := range steps {
			if (s.in == "") == anywhere && !seen[s.name] {
				names = append(names, s.name)
				seen[s.name] = true
			}
		}
	}
	return append(names, rest, report.AllStages)
}
