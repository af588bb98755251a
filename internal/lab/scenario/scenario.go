// SPDX-License-Identifier: Apache-2.0

package scenario

import "context"

// scenario is a kind of traffic and what is measured of it.
type scenario struct {
	name  string
	what  string
	flows int
	size  int
	// sizes makes a series of its own for each, unless a size was chosen.
	sizes []sized
	// slow measurements take seconds to mean something.
	slow bool
	// prepare measures, in the plain overlay, what all variants then share.
	prepare func(context.Context, *env) error
	// remark puts into words what a table has no column for, per variant.
	remark func(rounds []map[string]float64) string
	// measure runs the traffic once, in whatever variant the bed is in.
	measure func(context.Context, *env) (map[string]float64, error)
}

type sized struct {
	label string
	size  int
}

const (
	small = 64 // bytes in a small datagram
	kb    = 1024
)

var scenarios = []scenario{
	{name: "udp-one", what: "one UDP flow of small packets, offered above saturation", flows: 1, size: small, prepare: findFlood, measure: measureFlood},
	{name: "udp-many", what: "several UDP flows of small packets (--flows, --rates)", flows: 4, size: small, prepare: findFlood, measure: measureFlood},
	{name: "udp-large", what: "one UDP flow of 16 B, 1 KB, 4 KB and 64 KB datagrams (the latter as inner fragments)", flows: 1, size: 64 * kb,
		sizes: []sized{{"16B", 16}, {"1KB", kb}, {"4KB", 4 * kb}, {"64KB", 65000}}, measure: measureLarge},
	{name: "tcp-one", what: "one TCP connection (iperf3), MTU-sized frames on the wire", flows: 1, slow: true, measure: measureTCP},
	{name: "tcp-many", what: "several TCP connections", flows: 4, slow: true, measure: measureTCP},
	{name: "latency-idle", what: "one-way latency of 1000 datagrams a second, alone", flows: 1, size: small, slow: true, measure: measureIdleLatency},
	{name: "latency-load", what: "the same beside UDP at a fixed share of saturation (--load)", flows: 1, size: small, slow: true,
		prepare: findUDPSaturation, measure: measureUDPLatency},
	{name: "latency-load-tcp", what: "the same beside TCP", flows: 1, size: small, slow: true,
		prepare: findTCPSaturation, measure: measureTCPLatency},
	{name: "cross-check", what: "the lab's latency probe beside sockperf", flows: 1, size: small, slow: true, measure: measureCrossCheck,
		remark: remarkOn("p50_to_sockperf", "packet_to_sockperf")},
	{name: "overload", what: "delivery at 1, 2 and 4 times saturation", flows: 1, size: small, slow: true, measure: measureOverload,
		remark: remarkOn("kept_x2", "kept_x4")},
}

// Names lists the scenarios.
func Names() []string {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

// Describe says what a scenario is, in a few words.
func Describe(name string) string {
	s, _ := find(name)
	return s.what
}

func find(name string) (scenario, bool) {
	for _, s := range scenarios {
		if s.name == name {
			return s, true
		}
	}
	return scenario{}, false
}
