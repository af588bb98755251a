// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/shell"
)

// underlays reports the tunnels, and the NICs of home that they use.
func (p *pass) underlays() error {
	addrs, err := p.home.c.addrs()
	if err != nil {
		return err
	}
	for _, l := range p.home.links {
		if l.tunnel != nil && l.LowerNSID != -1 {
			p.skipPart(TunnelPart, p.home.dev(l), "its packets pass another network namespace; run overlane there")
		}
	}
	nics := map[int][]netip.Addr{}
	configured := map[int]bool{}
	for _, name := range p.s.opts.Underlays {
		l := byName(p.home.links, name)
		if l == nil {
			p.skipPart(UnderlayPart, Dev{p.home.cookie, 0, name}, "%s", shell.See("configured as an underlay, but there is no such device here", shell.Command("ip link")))
			continue
		}
		configured[l.Index] = true
		if l.Type != unix.ARPHRD_ETHER {
			p.skipPart(UnderlayPart, p.home.dev(l), noEthernet, name)
			continue
		}
		nics[l.Index] = addrs[l.Index]
	}
	for _, sp := range p.order {
		for _, l := range sp.ours {
			if err := p.tunnel(sp, l, addrs, configured, nics); err != nil {
				return err
			}
		}
	}
	for index, as := range nics {
		if err := p.underlay(p.home.links[index], as); err != nil {
			return err
		}
	}
	return nil
}

// noEthernet is why what comes by such a device is left alone, for example by a tunnel of WireGuard's.
const noEthernet = "left alone: %s has no Ethernet headers, and overlane's programs read no packets without"

// notConfigured is why a NIC is left alone by which packets of a tunnel may come that comes by a configured one as well.
const notConfigured = "left alone: it is not among the configured underlays; what comes by it is not steered"

func (p *pass) underlay(l *link, addrs []netip.Addr) error {
	root, err := p.sysfs(p.home)
	if err != nil {
		return err
	}
	u := Underlay{Dev: p.home.dev(l), MTU: l.MTU, Addrs: addrs, Driver: l.Kind, XDPProgID: l.XDP.First()}
	slices.SortFunc(u.Addrs, netip.Addr.Compare)
	u.Addrs = slices.Compact(u.Addrs)
	var at []string
	for _, port := range receivers(p.home.links, l.Index) {
		r := Receiver{Dev: p.home.dev(port), Driver: port.Kind, VNetHeader: port.vnet}
		if port.Kind == "veth" {
			r.Peer = p.otherEnd(port)
		}
		if driver, err := root.Readlink("class/net/" + r.Name + "/device/driver"); err == nil {
			r.Driver = filepath.Base(driver)
		}
		if bus, err := root.Readlink("class/net/" + r.Name + "/device"); err == nil {
			at = append(at, filepath.Base(bus))
		}
		if port == l {
			u.Driver = r.Driver
		}
		u.Receivers = append(u.Receivers, r)
	}
	if len(at) == len(u.Receivers) {
		u.At = strings.Join(at, " ")
	}
	d, err := openDev(root, u.Dev)
	if err == nil {
		defer d.Close()
		u.RxQueues, _, err = queues(d)
	}
	if err == nil {
		u.Moves, err = moves(root, u.Receivers)
	}
	if err != nil {
		if p.served(u.Key(), err) {
			return err
		}
		p.skipPart(UnderlayPart, u.Dev, "%v", err)
		return nil
	}
	u.VLANs = p.carriesVLANs(u)
	u.Unfinished = unfinished(u.Receivers, p.features)
	p.snap.Underlays = append(p.snap.Underlays, u)
	return nil
}

// tunnel reports a tunnel and adds the NICs it uses, unless they are configured.
func (p *pass) tunnel(sp *space, l *link, addrs map[int][]netip.Addr, configured map[int]bool, nics map[int][]netip.Addr) error {
	o := l.tunnel
	t := Tunnel{
		Dev: sp.dev(l), Kind: o.Kind, VNI: o.VNI, AnyVNI: o.AnyVNI, Port: o.Port, MTU: l.MTU, Local: o.Local, Outer: o.Outer(),
		GenericXDP: l.XDP.Generic != 0,
	}
	if o.OnlyRemote {
		t.Remote = o.Remote
	}
	if _, err := p.sysfs(sp); err != nil {
		p.skipPart(TunnelPart, t.Dev, "%v", err)
		return nil
	}
	if b := sp.links[l.Master]; b != nil && b.Kind == "bridge" {
		d := sp.dev(b)
		t.Bridge = &d
	}
	uppers, err := p.carriers(sp, l, addrs)
	if err != nil {
		return err
	}
	without := ""      // a NIC that it has, whose packets no program of ours reads
	var others []*link // NICs that it has, and the configuration does not
	for _, upper := range uppers {
		for _, nic := range lower(p.home.links, upper) {
			if len(configured) > 0 && !configured[nic] {
				others = append(others, p.home.links[nic])
				continue
			}
			if l := p.home.links[nic]; l.Type != unix.ARPHRD_ETHER {
				without = l.Name
				continue
			}
			t.Underlays = append(t.Underlays, p.home.dev(p.home.links[nic]))
			nics[nic] = append(append(nics[nic], addrs[nic]...), addrs[upper]...)
		}
	}
	switch {
	case without != "":
		p.skipPart(TunnelPart, t.Dev, noEthernet, without)
	case len(t.Underlays) == 0:
		switch {
		case len(p.s.opts.Underlays) > 0:
			p.skipPart(TunnelPart, t.Dev, "none of the configured underlays carries its packets")
		case len(uppers) > 0:
			p.skipPart(TunnelPart, t.Dev, "its packets leave by %s, under which there is no NIC", p.home.links[uppers[0]].Name)
		default:
			p.skipPart(TunnelPart, t.Dev, "no NIC here has its outer address or a route to its remotes; name one with underlays: [NIC]")
		}
	}
	slices.SortFunc(t.Underlays, byKey)
	t.Underlays = slices.Compact(t.Underlays)
	if len(t.Underlays) > 0 {
		for _, nic := range others {
			p.skipPart(UnderlayPart, p.home.dev(nic), notConfigured)
		}
	}
	p.snap.Tunnels = append(p.snap.Tunnels, t)
	return nil
}

// far are addresses of documentation, which only a default route leads to.
var far = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}

// carriers returns the devices of home that the tunnel's outer packets use: the
// one it is bound to, the one with its outer address, those towards its
// remotes, each of routes with several. With nothing to go by it is the one of the default route.
func (p *pass) carriers(sp *space, l *link, addrs map[int][]netip.Addr) ([]int, error) {
	o := l.tunnel
	var found []int
	add := func(index int) {
		n := p.home.links[index]
		if n != nil && !slices.Contains(found, index) && n.Name != "lo" && n.Kind != "dummy" {
			found = append(found, index)
		}
	}
	add(o.Link)
	if o.Local.IsValid() {
		for index, as := range addrs {
			if slices.Contains(as, o.Local) {
				add(index)
			}
		}
	}
	var remotes []netip.Addr
	if o.Remote.IsValid() && !o.Remote.IsMulticast() {
		remotes = append(remotes, o.Remote)
	}
	if len(found) == 0 && o.Peers {
		fdb, err := sp.c.remotes(l.Index)
		if err != nil {
			return nil, err
		}
		remotes = append(remotes, fdb...)
	}
	if len(found) == 0 && o.Remote.IsMulticast() {
		remotes = append(remotes, o.Remote)
	}
	if len(found) == 0 && len(remotes) == 0 {
		remotes = far
	}
	for _, a := range remotes {
		to, err := p.home.c.routesTo(a)
		if err != nil {
			return nil, err
		}
		for _, index := range to {
			add(index)
		}
	}
	slices.Sort(found)
	return found, nil
}

// lower returns the NICs under a device: a VLAN's parent, a bridge's ports that
// are no container's, else the device itself. A bond stays a bond.
func lower(links map[int]*link, index int) []int {
	seen := map[int]bool{}
	var found []int
	var down func(int)
	down = func(index int) {
		l := links[index]
		if l == nil || seen[index] {
			return
		}
		seen[index] = true
		switch l.Kind {
		case "vlan", "macvlan", "ipvlan":
			if l.LowerNSID == -1 && links[l.Lower] != nil {
				down(l.Lower)
				return
			}
		case "bridge":
			for _, port := range links {
				if port.Master == index && isNIC(port) {
					down(port.Index)
				}
			}
			return
		}
		found = append(found, index)
	}
	down(index)
	slices.Sort(found)
	return found
}

// receivers returns the devices whose NAPI receives for one: the ports of a bond or team, all the
// way down. A NIC of Hyper-V has its virtual function as a port, and receives itself as well.
func receivers(links map[int]*link, index int) []*link {
	var found []*link
	seen := map[int]bool{}
	var down func(int)
	down = func(index int) {
		l := links[index]
		if l == nil || seen[index] {
			return
		}
		seen[index] = true
		before := len(seen)
		for _, port := range links {
			if port.Master == index {
				down(port.Index)
			}
		}
		if ports := len(seen) > before; !ports || l.Kind != "bond" && l.Kind != "team" {
			found = append(found, l)
		}
	}
	down(index)
	slices.SortFunc(found, func(a, b *link) int { return a.Index - b.Index })
	return found
}

// carriesVLANs tells whether a VLAN device of any namespace sits on a NIC, on what receives for it,
// or on a bridge that it is a port of, or whether that bridge keeps VLANs apart itself.
func (p *pass) carriesVLANs(u Underlay) bool {
	family := []int{u.Ifindex}
	for _, r := range u.Receivers {
		family = append(family, r.Ifindex)
	}
	for l := p.home.links[u.Ifindex]; l != nil && l.Master != 0 && !slices.Contains(family, l.Master); l = p.home.links[l.Master] {
		family = append(family, l.Master)
	}
	return slices.ContainsFunc(p.order, func(sp *space) bool {
		return slices.ContainsFunc(sp.vlans, func(on int) bool { return slices.Contains(family, on) })
	})
}

// vlansOn returns the devices of home on which the VLAN devices of a namespace sit, or which keep VLANs apart
// themselves. homeID is the number that the namespace has for home, -1 if it is home.
func vlansOn(links map[int]*link, homeID int) []int {
	var on []int
	for _, l := range links {
		switch {
		case l.Kind == "vlan" && l.LowerNSID == homeID:
			on = append(on, l.Lower)
		case l.vlans && homeID == -1:
			on = append(on, l.Index)
		}
	}
	return on
}

// isNIC tells a bridge's uplink from ports that lead to containers, machines
// and tunnels.
func isNIC(l *link) bool {
	switch l.Kind {
	case "veth", "tun", "netkit", "dummy", "gre", "gretap", "bridge":
		return false
	}
	return l.tunnel == nil
}

func byName(links map[int]*link, name string) *link {
	for _, l := range links {
		if l.Name == name {
			return l
		}
	}
	return nil
}
