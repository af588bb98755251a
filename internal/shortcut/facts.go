// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"net/netip"
	"time"
)

// Facts are what one scan of a namespace saw.
type Facts struct {
	Unknown   string         // what could not be found out, why, and what would mend it
	Cookie    uint64         // of the namespace
	Devices   map[int]Device // by index; only those with a part in a path
	Netfilter Netfilter
}

// Device is a tunnel, a bridge, an end of a veth or a NIC.
type Device struct {
	// Queues tells that what the other end of a veth receives may wait in a queue of
	// its own (veth_skb_is_eligible_for_gro), rather than in a core's backlog.
	Queues  bool
	Unknown string // as in Facts, of this device
	Name    string
	Kind    string
	Up      bool
	Address MAC // its own; zero if it has none of Ethernet
	MTU     int
	Master  int
	// Metadata: the tunnel takes packets of any network identifier.
	Metadata bool
	// Marks: the tunnel's packets carry marks or more (GBP, GPE), which the tunnel
	// makes something of.
	Marks bool
	// Learning is how long the tunnel itself remembers behind which host a sender
	// is. 0: it does not learn, or does not forget.
	Learning time.Duration
	// Fixed are the senders of which a tunnel that learns was told behind which host they are: what
	// comes from another one it drops. An invalid address: behind none.
	Fixed  map[MAC]netip.Addr
	Bridge *Bridge // if it is one
	Port   *Port   // if it is a bridge's
	Peer   *Peer   // of a veth whose other end is in another namespace

	Qdisc   string   // root
	Filters string   // clsact or ingress, a qdisc that filters are attached to; empty if none
	TCX     []uint32 // programs of others
	XDP     uint32   // a program, 0 if none
}

// Bridge is what a bridge does with all frames.
type Bridge struct {
	VLANs    bool          // filters by VLAN
	IP4, IP6 bool          // hands frames to iptables, ip6tables by a setting of its own
	Ageing   time.Duration // 0: does not forget
}

// Port is what a bridge does with the frames of one port.
type Port struct {
	State      uint8
	Isolated   bool
	Locked     bool // refuses senders that it was not told of
	VLANTunnel bool // makes VLANs of network identifiers
	Learning   bool
}

// Peer is the pod's end of a veth.
type Peer struct {
	Device        // Master: in its own namespace
	Entry  *Entry // of its address in the bridge's table; nil if none
}

// Entry is an entry of a bridge's forwarding table.
type Entry struct {
	Dev    int // the port, or the bridge
	Local  bool
	Locked bool // not yet let in (MAB)
}

// Netfilter is what can filter frames between the ports of a bridge.
type Netfilter struct {
	IP4, IP6  bool    // net.bridge.bridge-nf-call-iptables, -ip6tables
	Chains    []Chain // nftables' base chains and flow tables
	Tables4   []string
	Tables6   []string
	Conntrack bool   // connections are followed in this namespace
	IPVS      bool   // has services
	Programs  int    // BPF programs at hooks of netfilter, in whatever namespace
	Ebtables  string // a module of legacy ebtables, whose tables cannot be listed
}

// Chain is a base chain of nftables or, with no hook, a flow table.
type Chain struct {
	Family  uint8
	Table   string
	Name    string
	Hook    int       // -1: a flow table
	Devices []Pattern // nil: not bound to devices
	Nat     bool      // only the first packet of each connection meets it
	Legacy  bool      // it is of one of iptables' own tables
}

// Pattern names a device, or all whose names begin so.
type Pattern struct {
	Name   string
	Prefix bool
}

// IngressFacts are what one scan of the NICs of a namespace saw.
type IngressFacts struct {
	Unknown string      // as in Facts
	Cookie  uint64      // of the namespace
	NICs    map[int]NIC // by index; only those asked about
	// Netfilter is without what only bridges ask for: IP4, IP6, Tables6, Ebtables.
	Netfilter Netfilter
	Selectors int    // BPF programs that choose sockets or dissect flows, in whatever namespace
	Rules     []Rule // of IPv4 routing; nil: the kernel knows none
	// Default: the main table has an IPv4 default route. Only looked for if a NIC's
	// PathFilter asks for routes to senders.
	Default  bool
	Policies int  // of IPsec (xfrm), in whatever direction
	Blocks   bool // IPsec takes no packets for which there is no policy
}

// NIC is a device that packets for tunnels arrive at. Its XDP and TCX are those of
// others, TCX only of what it receives.
type NIC struct {
	Device
	PortOf     string       // the name of its master
	Above      []Above      // devices of its namespace that name it as theirs
	Addrs      []netip.Addr // of IPv4, sorted
	PathFilter int          // net.ipv4.conf.*.rp_filter: of all or its own, the greater
	// Tags: it takes VLAN tags off, so that no program sees them in the frame, and lets frames of
	// VLANs pass for which there is no device.
	Tags bool
	RPS  []string // rps_cpus of each queue; none if the kernel is without RPS
}

// Above is a device that names another as the one beneath it.
type Above struct{ Name, Kind string }

// Rule is a rule of IPv4 routing.
type Rule struct {
	Priority uint32
	Table    uint32
	Plain    bool // it sends all packets to the table
}
