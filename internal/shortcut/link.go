// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/encap"
	"github.com/overlane/overlane/internal/nlsock"
)

// Not in golang.org/x/sys.
const (
	ndaFlagsExt  = 15
	ndaNexthop   = 13 // NDA_NH_ID
	ntfExtLocked = 1 << 1
	tcIngress    = 0xffff_fff1       // TC_H_INGRESS, of clsact, too
	tick         = time.Second / 100 // USER_HZ
)

// linkInfo is a device and where its other end is.
type linkInfo struct {
	Device
	promisc bool
	xdp     []uint32 // the programs of all modes; some twice
	generic uint32   // the one that runs behind GRO, 0 if there is none
	lower   int
	nsid    int // of the namespace that lower is in; -1: the same
	learns  bool
}

// links lists the devices of the namespace.
func (w *Watcher) links() (all map[int]linkInfo, err error) {
	err = w.rtnl.Links(func() { all = map[int]linkInfo{} }, func(l *nlsock.Link) { all[l.Index] = linkOf(l) })
	return all, err
}

func linkOf(from *nlsock.Link) linkInfo {
	l := linkInfo{
		Device: Device{
			Name: from.Name, Kind: from.Kind, Up: from.Flags&unix.IFF_UP != 0, MTU: from.MTU, Master: from.Master, Qdisc: from.Qdisc,
		},
		promisc: from.Promisc, xdp: from.XDP.All(), generic: from.XDP.Generic,
		lower: from.Lower, nsid: from.LowerNSID,
	}
	l.Address, _ = macOf(from.MAC)
	if len(l.xdp) > 0 {
		l.XDP = l.xdp[0]
	}
	if l.Kind == "bridge" {
		l.Bridge = parseBridge(from.Data)
	}
	if t, ok := encap.Parse(l.Kind, from.Data); ok {
		l.Metadata, l.Marks, l.learns = t.AnyVNI, t.Marked, t.Learns
		if t.Learns {
			l.Learning = t.Ageing
		}
	}
	if from.MasterKind == "bridge" {
		l.Port = parsePort(from.PortData)
	}
	return l
}

// fixed lists the senders of which a tunnel was told behind which host they are.
func (w *Watcher) fixed(tunnel int) (map[MAC]netip.Addr, error) {
	var all map[MAC]netip.Addr
	req := make([]byte, unix.SizeofNdMsg)
	req[0] = unix.AF_BRIDGE
	binary.NativeEndian.PutUint32(req[4:], uint32(tunnel))
	err := w.rtnl.Dump(unix.RTM_GETNEIGH, req, func() { all = map[MAC]netip.Addr{} }, func(b []byte) {
		m, host, ok := parseFixed(b, tunnel)
		if _, more := all[m]; ok && !more { // the tunnel checks the first
			all[m] = host
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list the tunnel's entries: %w", err)
	}
	return all, nil
}

// parseFixed reads an entry that a tunnel neither learns anew nor forgets (vxlan_snoop,
// drivers/net/vxlan/vxlan_core.c).
func parseFixed(b []byte, tunnel int) (m MAC, host netip.Addr, ok bool) {
	if len(b) < unix.SizeofNdMsg || b[0] != unix.AF_BRIDGE || int(int32(nlsock.U32(b[4:]))) != tunnel || b[10]&unix.NTF_SELF == 0 {
		return m, host, false
	}
	static := binary.NativeEndian.Uint16(b[8:])&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0
	a := nlsock.ListOf(b, unix.SizeofNdMsg)
	nexthop := a.Has(ndaNexthop)
	if !nexthop {
		host, _ = netip.AddrFromSlice(a.Get(unix.NDA_DST))
	}
	m, ok = macOf(a.Get(unix.NDA_LLADDR))
	return m, host, ok && (static || nexthop)
}

func parseBridge(b []byte) *Bridge {
	a := nlsock.ListOf(b, 0)
	return &Bridge{
		VLANs: a.Flag(unix.IFLA_BR_VLAN_FILTERING),
		IP4:   a.Flag(unix.IFLA_BR_NF_CALL_IPTABLES), IP6: a.Flag(unix.IFLA_BR_NF_CALL_IP6TABLES),
		Ageing: time.Duration(a.U32(unix.IFLA_BR_AGEING_TIME)) * tick,
	}
}

func parsePort(b []byte) *Port {
	a := nlsock.ListOf(b, 0)
	p := Port{
		Isolated: a.Flag(unix.IFLA_BRPORT_ISOLATED), Locked: a.Flag(unix.IFLA_BRPORT_LOCKED),
		VLANTunnel: a.Flag(unix.IFLA_BRPORT_VLAN_TUNNEL), Learning: a.Flag(unix.IFLA_BRPORT_LEARNING),
	}
	if state := a.Get(unix.IFLA_BRPORT_STATE); len(state) > 0 {
		p.State = state[0]
	}
	return &p
}

// peer reads the other end of a veth, without entering its namespace.
func (w *Watcher) peer(l linkInfo) (*Peer, error) {
	there, err := w.rtnl.LinkIn(l.nsid, l.lower)
	if err != nil {
		return nil, err
	}
	p := &Peer{Device: linkOf(there).Device}
	if l.Port != nil && p.Address != (MAC{}) {
		p.Entry, err = w.entry(l.Master, p.Address)
	}
	return p, err
}

// entry asks a bridge for one address, rather than for its table, which may be
// long.
func (w *Watcher) entry(bridge int, m MAC) (*Entry, error) {
	req := make([]byte, unix.SizeofNdMsg)
	req[0] = unix.AF_BRIDGE
	req = nlsock.Attr32(req, unix.NDA_MASTER, uint32(bridge))
	req = nlsock.Attr(req, unix.NDA_LLADDR, m[:])
	b, err := w.rtnl.Ask(unix.RTM_GETNEIGH, req)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask the bridge for %s: %w", m, err)
	}
	return parseEntry(b), nil
}

func parseEntry(b []byte) *Entry {
	if len(b) < unix.SizeofNdMsg || b[0] != unix.AF_BRIDGE {
		return nil
	}
	return &Entry{
		Dev:    int(int32(nlsock.U32(b[4:]))),
		Local:  binary.NativeEndian.Uint16(b[8:])&unix.NUD_PERMANENT != 0,
		Locked: nlsock.ListOf(b, unix.SizeofNdMsg).U32(ndaFlagsExt)&ntfExtLocked != 0,
	}
}

// filters lists the qdiscs that tc filters are attached to, by device.
func (w *Watcher) filters() (map[int]string, error) {
	var all map[int]string
	err := w.rtnl.Dump(unix.RTM_GETQDISC, make([]byte, sizeofTcMsg), func() { all = map[int]string{} }, func(b []byte) {
		if len(b) >= sizeofTcMsg && nlsock.U32(b[12:]) == tcIngress {
			kind := nlsock.ListOf(b, sizeofTcMsg).Str(unix.TCA_KIND)
			all[int(int32(nlsock.U32(b[4:])))] = cmp.Or(kind, "?")
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	return all, nil
}

const sizeofTcMsg = 20
