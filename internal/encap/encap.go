// SPDX-License-Identifier: Apache-2.0

// Package encap has the encapsulations that overlane understands, as the kernel tells of their devices. What their
// headers look like is in bpf/encap.h.
package encap

import (
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
)

// Kind is an encapsulation. Its number is that of enum ol_tunnel_kind (bpf/abi.h).
type Kind uint8

// Encapsulations.
const (
	VXLAN Kind = iota + 1
	Geneve
)

// table has each of them, by the kernel's name of its devices.
var table = map[string]struct {
	kind Kind
	attr func(t *Tunnel, kind uint16, value []byte) // reads an attribute of IFLA_INFO_DATA

	peers      bool // its forwarding database names hosts
	onlyRemote bool // with one destination, it takes outer packets of that alone
}{
	"vxlan":  {kind: VXLAN, attr: vxlan, peers: true},
	"geneve": {kind: Geneve, attr: geneve, onlyRemote: true},
}

// Known tells whether devices that the kernel calls so are tunnels that overlane understands.
func Known(device string) bool {
	_, ok := table[device]
	return ok
}

func (k Kind) String() string {
	for name, e := range table {
		if e.kind == k {
			return name
		}
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// Tunnel is what a device says of its encapsulation.
type Tunnel struct {
	Kind   Kind
	VNI    uint32
	AnyVNI bool // collect metadata: one device for many VNIs, chosen by routes or BPF
	Port   uint16
	Link   int        // ifindex in the link namespace of the device it sends by, 0 if it is not bound to one
	Local  netip.Addr // outer source address; invalid if the kernel chooses it
	Remote netip.Addr // default destination: a unicast peer or a group
	// OnlyRemote: it takes outer packets of Remote alone.
	OnlyRemote bool
	// Peers: the entries of its forwarding database name hosts.
	Peers bool
	// Marked: packets carry marks or more (GBP, GPE), which the device sets or judges.
	Marked bool
	Learns bool          // behind which host a sender is
	Ageing time.Duration // how long it remembers that
}

// Parse reads IFLA_INFO_KIND and IFLA_INFO_DATA; false: the device is no tunnel that overlane understands.
func Parse(device string, data []byte) (Tunnel, bool) {
	e, ok := table[device]
	if !ok {
		return Tunnel{}, false
	}
	t := Tunnel{Kind: e.kind, Peers: e.peers}
	for kind, value := range nlsock.Attrs(data) {
		e.attr(&t, kind, value)
	}
	t.OnlyRemote = e.onlyRemote && !t.AnyVNI && t.Remote.IsValid()
	return t, true
}

// vxlan: vxlan_fill_info in drivers/net/vxlan/vxlan_core.c.
func vxlan(t *Tunnel, kind uint16, v []byte) {
	switch kind {
	case unix.IFLA_VXLAN_ID:
		t.VNI = nlsock.U32(v)
	case unix.IFLA_VXLAN_PORT:
		t.Port = nlsock.U16BE(v)
	case unix.IFLA_VXLAN_COLLECT_METADATA:
		t.AnyVNI = flag(v)
	case unix.IFLA_VXLAN_LINK:
		t.Link = int(nlsock.U32(v))
	case unix.IFLA_VXLAN_LOCAL, unix.IFLA_VXLAN_LOCAL6:
		t.Local = nlsock.Addr(v)
	case unix.IFLA_VXLAN_GROUP, unix.IFLA_VXLAN_GROUP6:
		t.Remote = nlsock.Addr(v)
	case unix.IFLA_VXLAN_GBP, unix.IFLA_VXLAN_GPE: // being there is their value
		t.Marked = true
	case unix.IFLA_VXLAN_LEARNING:
		t.Learns = flag(v)
	case unix.IFLA_VXLAN_AGEING:
		t.Ageing = time.Duration(nlsock.U32(v)) * time.Second
	}
}

// geneve: geneve_fill_info in drivers/net/geneve.c.
func geneve(t *Tunnel, kind uint16, v []byte) {
	switch kind {
	case unix.IFLA_GENEVE_ID:
		t.VNI = nlsock.U32(v)
	case unix.IFLA_GENEVE_PORT:
		t.Port = nlsock.U16BE(v)
	case unix.IFLA_GENEVE_COLLECT_METADATA:
		t.AnyVNI = true // being there is its value
	case unix.IFLA_GENEVE_REMOTE, unix.IFLA_GENEVE_REMOTE6:
		t.Remote = nlsock.Addr(v)
	}
}

// Outer is the outer IP version that it receives, as far as its addresses tell; 0: that may be both.
func (t Tunnel) Outer() int {
	for _, a := range []netip.Addr{t.Local, t.Remote} {
		switch {
		case t.AnyVNI || !a.IsValid():
		case a.Is4():
			return 4
		default:
			return 6
		}
	}
	return 0
}

func flag(v []byte) bool { return len(v) > 0 && v[0] != 0 }
