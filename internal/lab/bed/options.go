// SPDX-License-Identifier: Apache-2.0

// Package bed builds the lab's test bed: two hosts in network namespaces of
// their own, joined by a veth pair that stands for the wire, with a VXLAN
// overlay and pods on top. Nothing outside of these namespaces is touched, and
// Down leaves nothing, also after a crash of Up.
package bed

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// Topology is how pods are joined to the tunnel.
type Topology string

const (
	// Bridged: tunnel, bridge and the pods' host ends in the host's namespace.
	Bridged Topology = "bridged"
	// Routed: no bridge; the host forwards between tunnel and pods, as
	// flannel and Calico do.
	Routed Topology = "routed"
	// Nested: tunnel, bridge and host ends in a namespace of their own, as
	// Docker's overlay networks have them.
	Nested Topology = "nested"
	// Bare: the hosts and the wire alone, for an overlay that a container engine builds.
	Bare Topology = "bare"
)

// NIC is how the receiving end of the wire is polled.
type NIC string

const (
	// Thread: by threaded NAPI, one kernel thread per queue, queue i pinned to core i.
	Thread NIC = "thread"
	// Softirq: in softirq context, on the sender's core.
	Softirq NIC = "softirq"
)

// NAPI is how the wire's NAPI threads are scheduled, the same in every variant but for Own.
type NAPI string

const (
	// Nice: by the fair scheduler, at its most eager nice value.
	Nice NAPI = "nice"
	// FIFO: in real time, at its lowest priority. No task of the fair scheduler
	// preempts that, whatever its nice value.
	FIFO NAPI = "fifo"
	// Own: as Nice, but a variant that schedules them itself finds them as the kernel makes
	// them.
	Own NAPI = "own"
)

// String says it as an operator sets it by hand.
func (p NAPI) String() string {
	switch p {
	case FIFO:
		return fmt.Sprintf("fifo %d", fifoPriority)
	case Own:
		return fmt.Sprintf("nice %d, of priority its own", niceValue)
	default:
		return fmt.Sprintf("nice %d", niceValue)
	}
}

const (
	// VNI of the overlay, and the port of its tunnel.
	VNI        = 42
	TunnelPort = 4789
	// WireMTU is what the wire carries; OverlayMTU is what is left for pods.
	WireMTU    = 1500
	OverlayMTU = WireMTU - 50
	// MaxPods and MaxQueues bound what addresses and device names allow.
	MaxPods   = 64
	MaxQueues = 16
	// DefaultStateDir holds one folder for each lab that is up.
	DefaultStateDir = "/run/overlane-lab"
	// DefaultName is the lab that verbs use when none is named.
	DefaultName = "0"
)

// Options describe a bed. The zero value of each field means its default.
type Options struct {
	Name     string   `json:"name"`
	Topology Topology `json:"topology"` // bridged
	NIC      NIC      `json:"nic"`      // thread
	NAPI     NAPI     `json:"napi"`     // nice
	Queues   int      `json:"queues"`   // 1
	Pods     int      `json:"pods"`     // on each host; 1
	IPv6     bool     `json:"ipv6"`     // pods have IPv6 beside IPv4
	StateDir string   `json:"-"`        // DefaultStateDir
}

var nameRE = regexp.MustCompile(`^[a-z0-9]{1,12}$`)

// Normalize fills in defaults and refuses what cannot be built.
func (o *Options) Normalize() error {
	o.Name = cmp.Or(o.Name, DefaultName)
	o.StateDir = cmp.Or(o.StateDir, DefaultStateDir)
	o.Topology = cmp.Or(o.Topology, Bridged)
	o.NIC = cmp.Or(o.NIC, Thread)
	o.NAPI = cmp.Or(o.NAPI, Nice)
	o.Queues = cmp.Or(o.Queues, 1)
	if o.Pods == 0 && o.Topology != Bare {
		o.Pods = 1
	}
	if !nameRE.MatchString(o.Name) {
		return fmt.Errorf("lab name %q: 1 to 12 of a-z and 0-9 are allowed", o.Name)
	}
	if !slices.Contains([]Topology{Bridged, Routed, Nested, Bare}, o.Topology) {
		return fmt.Errorf("topology %q: bridged, routed, nested and bare are known", o.Topology)
	}
	if o.NIC != Thread && o.NIC != Softirq {
		return fmt.Errorf("nic %q: thread and softirq are known", o.NIC)
	}
	if o.NAPI != Nice && o.NAPI != FIFO && o.NAPI != Own {
		return fmt.Errorf("napi %q: nice, fifo and own are known", string(o.NAPI))
	}
	if o.NAPI != Nice && o.NIC != Thread {
		return fmt.Errorf("napi %s needs nic %s: with nic %s no thread polls the wire", string(o.NAPI), Thread, o.NIC)
	}
	if o.Queues < 1 || o.Queues > MaxQueues {
		return fmt.Errorf("%d wire queues: 1 to %d are possible", o.Queues, MaxQueues)
	}
	if o.Queues > runtime.NumCPU() {
		return fmt.Errorf("%d wire queues on %d cores: a queue needs a core that feeds it, use --queues %d or fewer",
			o.Queues, runtime.NumCPU(), runtime.NumCPU())
	}
	if o.Topology == Bare {
		if o.Pods != 0 {
			return fmt.Errorf("%d pods: a bare lab has none", o.Pods)
		}
	} else if o.Pods < 1 || o.Pods > MaxPods {
		return fmt.Errorf("%d pods: 1 to %d are possible", o.Pods, MaxPods)
	}
	return nil
}

// Side tells the two hosts apart.
type Side int

const (
	A Side = iota // sends
	B             // receives, and is what is measured
)

func (s Side) String() string { return [...]string{"A", "B"}[s] }
func (s Side) peer() Side     { return 1 - s }

// Everything below follows from options alone: no address, MAC or name needs
// to be stored or looked up.

func wireDev(s Side) string        { return "p" + s.String() }
func tunnelMAC(s Side) MAC         { return mac(2, s, 0) }
func wireMAC(s Side) MAC           { return mac(1, s, 0) }
func podMAC(s Side, n int) MAC     { return mac(3, s, n) }
func hostEndMAC(s Side, n int) MAC { return mac(4, s, n) }

func wireIP(s Side) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, 42, byte(s) + 1}) }

func podIP4(s Side, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 42, byte(s) + 1, byte(n) + 1})
}

func podIP6(s Side, n int) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x42, 7: byte(s) + 1, 15: byte(n) + 1})
}

// subnets of one host's pods; the address with a zero host part is the tunnel's.
func subnet4(s Side) netip.Prefix { return netip.PrefixFrom(podIP4(s, -1), 24) }
func subnet6(s Side) netip.Prefix { return netip.PrefixFrom(podIP6(s, -1), 64) }

// numbered appends 2, 3, ... to the names of the second and later pods.
func numbered(base string, n int) string {
	if n == 0 {
		return base
	}
	return fmt.Sprintf("%s%d", base, n+1)
}

// MAC is a hardware address.
type MAC [6]byte

func mac(role byte, s Side, n int) MAC { return MAC{0x02, 0x6f, 0x6c, role, byte(s) + 1, byte(n) + 1} }

func (o *Options) nsName(host string) string { return "ol" + o.Name + "-" + host }

// HostNames lists the namespaces of a bed by the names that exec takes.
func (o *Options) HostNames() []string {
	var names []string
	for _, s := range []Side{A, B} {
		names = append(names, "h"+s.String())
		if o.Topology == Nested {
			names = append(names, "o"+s.String())
		}
		for n := range o.Pods {
			names = append(names, numbered("c"+s.String(), n))
		}
	}
	return names
}

// Polling says how the threads are scheduled that poll the wire; nothing where
// none does.
func (o *Options) Polling() string {
	if o.NIC != Thread {
		return ""
	}
	return o.NAPI.String()
}

func (o *Options) String() string {
	parts := []string{string(o.Topology), "nic " + string(o.NIC)}
	if p := o.Polling(); p != "" {
		parts[1] += " at " + p
	}
	if o.Queues > 1 {
		parts = append(parts, fmt.Sprintf("%d queues", o.Queues))
	}
	if o.Pods > 1 {
		parts = append(parts, fmt.Sprintf("%d pods", o.Pods))
	}
	if o.IPv6 {
		parts = append(parts, "IPv6")
	}
	return strings.Join(parts, ", ")
}
