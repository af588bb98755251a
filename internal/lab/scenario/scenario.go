// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"fmt"
	"strings"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
)

// scenario is a kind of traffic and what is measured of it.
type scenario struct {
	name  string
	what  string
	flows int
	size  int
	// points makes a series of its own for each, unless size or load was chosen.
	points []point
	// mixed are further sizes of datagrams, which come by chance.
	mixed []int
	// load is the background's share of saturation where it is not what the points
	// are about; they then stay whatever was chosen.
	load float64
	// latency is the traffic whose latency is measured; none: the probe's.
	latency service
	// alone: there is nothing beside that traffic.
	alone bool
	// programs are what it starts, beside the product.
	programs []string
	// ipv4 scenarios cannot run inside of an IPv6 overlay, and say why.
	ipv4 string
	// thread scenarios mean something only where threads poll the wire.
	thread bool
	// slow measurements take seconds to mean something.
	slow bool
	// prepare measures, in the plain overlay, what all variants then share.
	prepare func(context.Context, *env) error
	// remark puts into words what a table has no column for, per variant.
	remark func(rounds []map[string]float64) string
	// measure runs the traffic once, in whatever variant the bed is in.
	measure func(context.Context, *env) (map[string]float64, error)
}

// point is what one series of several is made at.
type point struct {
	label string
	set   func(*Config)
}

func size(label string, bytes int) point {
	return point{label, func(c *Config) { c.Size = bytes }}
}

// loads are points at shares of saturation.
func loads(shares ...float64) (list []point) {
	for _, x := range shares {
		list = append(list, point{fmt.Sprintf("%.0f%%", 100*x), func(c *Config) { c.Load = x }})
	}
	return list
}

// Stages is the name of the scenario that is about where time goes.
const Stages = "stages"

const (
	small = 64 // bytes in a small datagram
	kb    = 1024
)

// busy is the background of scenarios with a server: the least at which the
// receive path of a node is what they wait for.
const busy = 0.7

var iperf = []string{"iperf3"}

var scenarios = []scenario{
	{name: "udp-one", what: "one UDP flow of small packets, offered above saturation", flows: 1, size: small, prepare: findFlood, measure: measureFlood},
	{name: "udp-many", what: "several UDP flows of small packets (--flows, --rates)", flows: 4, size: small, prepare: findFlood, measure: measureFlood},
	{name: "udp-mixed", what: "several UDP flows whose datagrams are of 64, 512 and 1400 bytes by chance (--flows)", flows: 8, size: 1400, mixed: []int{512, small}, prepare: findFlood, measure: measureFlood},
	{name: "udp-read", what: "one UDP flow of small packets, offered above saturation, to a program that reads each: what it gets (--flows)", flows: 1, size: small,
		prepare: findFlood, measure: measureRead},
	{name: "udp-large", what: "one UDP flow of 16 B, 1 KB, 4 KB and 64 KB datagrams (the latter as inner fragments)", flows: 1, size: 64 * kb,
		points: []point{size("16B", 16), size("1KB", kb), size("4KB", 4*kb), size("64KB", 65000)}, measure: measureLarge},
	{name: "tcp-one", what: "one TCP connection (iperf3), MTU-sized frames on the wire", flows: 1, slow: true, programs: iperf, measure: measureTCP},
	{name: "tcp-many", what: "several TCP connections", flows: 4, slow: true, programs: iperf, measure: measureTCP},
	{name: "tcp-sizes", what: "TCP written in pieces of 16 B, 4 KB and 64 KB (--flows)", flows: 1, size: 64 * kb, slow: true,
		points: []point{size("16B", 16), size("4KB", 4*kb), size("64KB", 64*kb)}, programs: iperf, measure: measureTCP},
	{name: "latency-idle", what: "one-way latency of 1000 datagrams a second, alone", flows: 1, size: small, slow: true, measure: measureIdleLatency},
	{name: "latency-load", what: "the same beside UDP at a fixed share of saturation (--load)", flows: 1, size: small, slow: true,
		prepare: findUDPSaturation, measure: measureUDPLatency},
	{name: "latency-busy", what: "the same beside UDP at 70 %, 90 % and 200 % of saturation", flows: 1, size: small, slow: true,
		points: loads(0.7, 0.9, 2), prepare: findUDPSaturation, measure: measureUDPLatency},
	{name: "latency-sweep", what: "the same at loads from nothing to 120 %", flows: 1, size: small, slow: true,
		points: loads(0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2), prepare: findUDPSaturation, measure: measureUDPLatency},
	{name: "latency-rr", what: "there and back (UDP echo), beside UDP at 70 %, 90 % and 200 % of saturation", flows: 1, size: small, slow: true,
		points: loads(0.7, 0.9, 2), prepare: findUDPSaturation, measure: measureRoundTrip},
	{name: "latency-load-tcp", what: "one way, beside TCP", flows: 1, size: small, slow: true,
		programs: iperf, prepare: findTCPSaturation, measure: measureTCPLatency},
	{name: "memcached", what: "memcached, 550-byte objects, 1 and 10 clients, alone and beside UDP (--load)", flows: 1, size: small, slow: true,
		points: clients(1, 10), load: busy, latency: memcachedService, programs: []string{"memcached", "memcaslap"},
		ipv4: "memcaslap knows no IPv6 addresses", prepare: findUDPSaturation, measure: memcached.measure},
	{name: "web", what: "nginx, a file of less than 1 KB, 10 clients, alone and beside TCP (--load)", flows: 1, slow: true,
		points: clients(10), load: busy, latency: webService, programs: []string{"nginx", "wrk", "iperf3"},
		prepare: findTCPSaturation, measure: web.measure},
	{name: "streamline", what: "one UDP flow at 75 % of saturation and nothing else: its own latency, and its highest rate without loss", flows: 1, size: small,
		slow: true, load: steady, latency: flowService, alone: true, prepare: findUDPSaturation, measure: measureStreamline},
	{name: "cross-check", what: "the lab's latency probe beside sockperf", flows: 1, size: small, slow: true, programs: []string{"sockperf"}, measure: measureCrossCheck,
		remark: remarkOn("p50_to_sockperf", "packet_to_sockperf")},
	{name: Stages, what: "udp-one, with what each step of the receive path costs (overlane lab stages shows it)", flows: 1, size: small, slow: true,
		thread: true, prepare: findFlood, measure: measureStages},
	{name: "overload", what: "delivery at 1, 2 and 4 times saturation", flows: 1, size: small, slow: true, measure: measureOverload,
		remark: remarkOn("kept_x2", "kept_x4")},
}

// pointsFor are what series are made at: the scenario's own points, unless what
// they are about was chosen.
func (s *scenario) pointsFor(c *Config) []point {
	if len(s.points) == 0 || s.load == 0 && (c.Size != s.size || c.Load != 0) {
		return []point{{"", func(*Config) {}}}
	}
	return s.points
}

// possible tells what keeps a scenario from running on a bed.
func (s *scenario) possible(b *bed.Bed) error {
	if s.ipv4 != "" && b.IPv6 {
		return fmt.Errorf("%s does not run with --ipv6: %s", s.name, s.ipv4)
	}
	if s.thread && b.NIC != bed.Thread {
		return fmt.Errorf("%s needs --nic %s: it tells stages apart by the thread that polls", s.name, bed.Thread)
	}
	return traffic.Installed(s.programs...)
}

// Catalogue says what scenarios and variants there are, and what each is, in a few words.
func Catalogue() string {
	var b strings.Builder
	b.WriteString("Scenarios:\n")
	for _, s := range scenarios {
		fmt.Fprintf(&b, "  %-16s %s\n", s.name, s.what)
	}
	b.WriteString("\nVariants:\n")
	for _, v := range variants {
		fmt.Fprintf(&b, "  %-16s %s\n", v.name, v.what)
	}
	fmt.Fprintf(&b, "\nRates of several flows: %s, %s, %s.", traffic.Equal, traffic.Skewed, traffic.Shifting)
	return b.String()
}

func (s scenario) called() string { return s.name }

// find returns the scenario or the variant of a name.
func find[T interface{ called() string }](list []T, name string) (found T, ok bool) {
	for _, one := range list {
		if one.called() == name {
			return one, true
		}
	}
	return found, false
}

// names are those of scenarios or of variants.
func names[T interface{ called() string }](list []T) (names []string) {
	for _, one := range list {
		names = append(names, one.called())
	}
	return names
}
