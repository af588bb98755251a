// SPDX-License-Identifier: Apache-2.0

// Package node observes what of an overlay network is on this node: the
// underlays of one network namespace, the tunnels that send and receive
// through them, wherever these live, and the pods behind the tunnels.
//
// It only reads. What it finds belongs to the namespace that the Scanner was
// made for (its home): a tunnel elsewhere only if its link namespace is home, a
// pod only if its veth leads to such a tunnel. Two scanners with different
// homes never report the same underlay or tunnel.
//
// Devices are told apart by (namespace cookie, ifindex). Names are for people
// and for sysfs, and may change at any time.
package node

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/overlane/overlane/internal/encap"
)

// DevKey identifies a device for as long as it exists. An ifindex can be used
// again in the same namespace after a device is gone; a cookie never is.
type DevKey struct {
	NetnsCookie uint64
	Ifindex     int
}

// Dev is a network device.
type Dev struct {
	NetnsCookie uint64
	Ifindex     int
	Name        string // as of the scan
}

// Key returns what identifies the device.
func (d Dev) Key() DevKey { return DevKey{d.NetnsCookie, d.Ifindex} }

// Same reports whether both are one device, whatever they are called.
func (d Dev) Same(o Dev) bool { return d.Key() == o.Key() }

func (d Dev) String() string {
	return d.Name + "(" + strconv.FormatUint(d.NetnsCookie, 10) + "/" + strconv.Itoa(d.Ifindex) + ")"
}

// Underlay is a NIC of the home namespace that carries encapsulated packets.
type Underlay struct {
	Dev
	MTU       int
	RxQueues  int          // in use, not merely allocated
	Addrs     []netip.Addr // its own, and those of the VLANs and bridges above it that tunnels use
	Driver    string       // kernel driver, or the link kind of a virtual device
	XDPProgID uint32       // of the attached program, 0 if none
	// ForeignXDP is set when XDPProgID is not one of ours by Options.OwnXDP.
	ForeignXDP bool
	// At is its bus address, which is the same after a restart; those of its ports if it is a
	// bond. Empty for a virtual device.
	At string
	// Receivers are the devices whose NAPI receives for it, sorted: itself, or the ports of a
	// bond or team, all the way down, and the virtual function beside a NIC of Hyper-V.
	Receivers []Receiver
	// VLANs tells that a VLAN device sits on it, or on one that receives for it, in whatever namespace, or
	// that it is a port of a bridge that keeps VLANs apart. XDP does not see the tags that the NIC takes off.
	VLANs bool
	// Moves says that RPS or RFS moves what it receives to other cores, empty if they do not. What comes out
	// of a lane has lost its hash and its queue, and goes to another core than what takes the stock path.
	Moves string
	// Unfinished says that senders leave checksums to the receiver, empty if they do not, as far as can be told without
	// looking at packets. An XDP program does not get to know, and what it sends on is dropped as corrupt.
	Unfinished string
}

// Receiver is a device that receives for an underlay.
type Receiver struct {
	Dev
	Driver string
	// Peer is a veth's other end. Its namespace is 0 where the scan did not find that, its name empty where the kernel does
	// not tell it.
	Peer Dev
	// VNetHeader tells that the program behind a tap device hands over more of a packet than its bytes.
	VNetHeader bool
}

// Hidden tells of a veth that its other end is out of sight.
func (r Receiver) Hidden() bool { return r.Driver == "veth" && r.Peer.NetnsCookie == 0 }

// Master tells that only others receive for it.
func (u Underlay) Master() bool {
	itself := func(r Receiver) bool { return r.Same(u.Dev) }
	return len(u.Receivers) > 0 && !slices.ContainsFunc(u.Receivers, itself)
}

// Tunnel is a tunnel's device whose outer packets pass the home namespace.
type Tunnel struct {
	Dev
	Kind      encap.Kind
	VNI       uint32
	AnyVNI    bool // collect metadata: one device for many VNIs, chosen by routes or BPF
	Port      uint16
	MTU       int
	Local     netip.Addr // outer source address; invalid if the kernel chooses it
	Remote    netip.Addr // the only outer source that it takes; invalid if it takes any
	Outer     int        // the outer IP version that it receives, 0 if that may be both
	Underlays []Dev      // NICs by which its packets arrive, sorted
	Bridge    *Dev       // the bridge it is a port of, nil if none
	// GenericXDP tells that an XDP program is on it, for which the kernel leaves its GRO out (netif_elide_gro).
	GenericXDP bool
}

// EthernetHeader is the length of the inner header that Overhead counts and an MTU does not.
const EthernetHeader = 14

// Overhead is what the encapsulation adds to an inner packet, in bytes, on its way by an underlay: inner Ethernet, VXLAN or
// Geneve without options, UDP, outer IP.
func (t Tunnel) Overhead(u Underlay) int {
	v6 := t.Local.Is6()
	if !t.Local.IsValid() {
		v6 = !slices.ContainsFunc(u.Addrs, netip.Addr.Is4) && slices.ContainsFunc(u.Addrs, netip.Addr.Is6)
	}
	if v6 {
		return EthernetHeader + 8 + 8 + 40
	}
	return EthernetHeader + 8 + 8 + 20
}

// Pod is a container's veth: the end on the host's side and the end in the
// container.
type Pod struct {
	Host         Dev
	Peer         Dev
	PeerRxQueues int
	PeerMTU      int
	HostQdisc    string // root qdisc of the host end, "noqueue" by default
	Tunnels      []Dev  // tunnels that lead to this pod, sorted
}

// Skip is a device that looked like one of ours and was left out.
type Skip struct {
	Dev    Dev
	Reason string
	Part   Part
}

// Part is what of an overlay a device is, or looked like.
type Part int

const (
	// PodPart is a container's end on the host, or the namespace that it may be in.
	PodPart Part = iota
	TunnelPart
	UnderlayPart
)

// Snapshot is what one Scan saw. All lists are sorted by namespace and
// ifindex, so that equal states compare equal.
type Snapshot struct {
	Underlays []Underlay
	Tunnels   []Tunnel
	Pods      []Pod
	Stacked   []Stacked // containers without a veth
	Skipped   []Skip
}

// Receivers are the devices that receive for the underlays, each once. NAPI polls them, and GRO goes by
// their settings: those of a bond's ports, not of the bond.
func (s Snapshot) Receivers() []Dev {
	var devs []Dev
	for _, u := range s.Underlays {
		for _, r := range u.Receivers {
			if !slices.Contains(devs, r.Dev) {
				devs = append(devs, r.Dev)
			}
		}
	}
	return devs
}
