// SPDX-License-Identifier: Apache-2.0

// Package shortcut decides whether frames for a pod may take the redirect path: from
// the tunnel's tc ingress straight to the pod's end of its veth
// (bpf_redirect_peer), past the bridge, the host's end and every policy there.
//
// It only reads. Evaluate is a pure function of Facts; a Watcher gathers them in
// the namespace of the tunnel and tells when to scan again. What cannot be found
// out counts as a reason against: the full path is always right.
//
// # What a verdict covers
//
// Frames with one destination address: the pod's own. What is handed to a veth's
// other end is marked as meant for that end, whatever the address (bpf/peer.h, and
// newer kernels by themselves), so that a pod would take frames that it refuses
// when the bridge floods them. For other addresses behind the pod, a machine's or a
// macvlan's, the bridge stays in charge, although it may have learned them.
//
// And of these frames only what the program at the tunnel finds to be plain TCP
// or UDP in IPv4 or IPv6: no fragment, options or extension headers, no VLAN tag,
// a sender's address that is neither zero nor a group's (the bridge drops those),
// and no longer than Verdict.MTU with Ethernet header and room for a tag, unless
// a GSO packet: bpf_redirect_peer does not check. ARP and neighbour discovery
// always go by the bridge, for which reason neigh_suppress and arptables are not
// checked.
//
// The bridge does not see the senders of frames that pass it by: see
// Verdict.Refresh.
//
// # The NIC's side
//
// A program that takes frames from the NIC itself skips what is between NIC and tunnel, too,
// in the NIC's namespace, which may be another. EvaluateIngress checks that: see
// Ingress. Both verdicts, of the path and of the NIC, have to allow it, and the
// tunnel must not be Marked.
//
// # What is skipped without a verdict
//
// Packet sockets (tcpdump) on the bridge and the veth's host end see nothing,
// and their counters do not count. A bridge in promiscuous mode, which is how
// such a socket asks, hands no copies to the host. The hooks of SELinux and Smack,
// which br_netfilter would call, are not checked: they decide by labels that
// come with IP options, which never take the redirect path, or with rules of a
// firewall, which end it.
package shortcut

import (
	"net"
	"net/netip"
	"time"

	"github.com/overlane/overlane/internal/node"
)

// Path is what is asked about: a tunnel and the host's end of a pod's veth, both
// in the namespace that is checked.
type Path struct{ Tunnel, Host node.Dev }

// Verdict is the verdict on one path.
type Verdict struct {
	Path
	// Reason says why frames may not be redirected, in words for people; empty if
	// it may. The other fields are set only then.
	Reason string
	MAC    MAC // the destination address: the pod's own
	MTU    int // of the smaller end of the veth
	// Refresh is how long the bridge remembers behind which port a sender is. It
	// learns nothing from frames that pass it by, and what it has forgotten it
	// floods: each sender needs one frame by the full path within this time. 0:
	// the tunnel's port does not learn, or the bridge does not forget.
	Refresh time.Duration
	// Relearn is the same for frames that skip the tunnel, too: the smaller of Refresh and
	// of how long the tunnel remembers behind which host a sender is. 0: neither.
	Relearn time.Duration
	// TunnelMAC is the tunnel's own address: what comes from it are echoes, which the
	// tunnel drops.
	TunnelMAC MAC
	// Marked: the tunnel makes something of marks in its packets (GBP, GPE). What
	// the tunnel has handed on is not concerned; to skip the tunnel is not safe.
	Marked bool
	// Fixed are the senders whose frames the tunnel drops unless they come from these hosts, as in
	// Device.
	Fixed map[MAC]netip.Addr
}

// Safe tells that frames for MAC may be handed to the peer of Host.
func (v Verdict) Safe() bool { return v.Reason == "" }

// MAC is an Ethernet address that can be compared.
type MAC [6]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// macOf returns false for what is no address of one Ethernet device.
func macOf(b []byte) (m MAC, ok bool) {
	if len(b) != len(m) {
		return m, false
	}
	copy(m[:], b)
	return m, m[0]&1 == 0 && m != MAC{}
}
