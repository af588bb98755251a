// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
)

// A pod's end that leaves its bridge, and lives on, has its mask no longer: flows drain before, and the other pods are
// steered again.
func TestAPodThatLeavesItsBridgeHasItsMaskNoLonger(t *testing.T) {
	b := lab(t, bed.Options{Pods: 2})
	host := b.Receiver()
	first, second := host.Pods[0], host.Pods[1]
	was := rig.Mask(t, second.NS, bed.PodDev)
	d := rig.Start(t, rig.Spec{NS: host.NS, Config: forced})
	l := rig.StartLoad(t, b, 4, 0)
	d.Acting()
	steered(t, d, second, first)
	nl := rig.In(t, host.Overlay)
	defer nl.Close()
	end, err := nl.LinkByName(second.HostEnd)
	must(t, err)
	bridge, err := nl.LinkByName(bed.Bridge)
	must(t, err)
	must(t, nl.LinkSetNoMaster(end))
	rig.Until(t, "the mask is gone", func() (bool, string) {
		now := rig.Mask(t, second.NS, bed.PodDev)
		return now == was, now + "\n" + d.Log()
	})
	d.Acting()
	must(t, nl.LinkSetMaster(end, bridge))
	steered(t, d, second, first)
	l.GoesOn()
	ends(t, d)
	left(t, d, l.Stop())
}

// A NIC whose tunnel goes while mechanisms act on another NIC is as it was before.
func TestANICWhoseTunnelGoesIsAsBefore(t *testing.T) {
	b := rig.Lab(t, bed.Options{})
	rx := b.Receiver()
	const nic = "nic9"
	nl := rig.In(t, rx.NS)
	defer nl.Close()
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: nic})
	veth.PeerName = "wire9"
	addr, err := netlink.ParseAddr("10.9.9.1/24")
	must(t, err)
	must(t, nl.LinkAdd(veth))
	wire, err := nl.LinkByName(veth.PeerName)
	must(t, err)
	vx := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vx9"}, VxlanId: 99, VtepDevIndex: veth.Index, SrcAddr: addr.IP, Port: 4799}
	must(t, errors.Join(nl.LinkSetUp(wire), nl.LinkSetUp(veth), nl.AddrAdd(veth, addr), nl.LinkAdd(vx), nl.LinkSetUp(vx)))
	for _, left := range []string{"tx-checksum-ip-generic", "tx-checksum-sctp"} {
		must(t, rx.NS.Do(func() error { return ethtool.SetFeature(veth.PeerName, left, false) }))
	}
	changed := func() (joins bool, threads string) {
		t.Helper()
		must(t, rx.NS.Do(func() error {
			f, err := ethtool.Features(nic)
			joins = f["rx-udp-gro-forwarding"].Active
			return err
		}))
		root, err := rx.NS.Sysfs()
		must(t, err)
		defer root.Close()
		v, err := root.ReadFile("class/net/" + nic + "/threaded")
		must(t, err)
		return joins, strings.TrimSpace(string(v))
	}
	d := rig.Start(t, rig.Spec{NS: rx.NS, Config: strings.Replace(prioritised, "pipeline: off", "pipeline: off\naggregate: forced", 1)})
	is := func(what string, joins bool, threads string) {
		t.Helper()
		rig.Until(t, what, func() (bool, string) {
			j, th := changed()
			return j == joins && th == threads && threaded(t, b) && forwarding(t, b)[0], fmt.Sprintf("joins: %t, threaded: %s\n%s", j, th, d.Log())
		})
	}
	is("mechanisms act on both NICs", true, "1")
	must(t, nl.LinkDel(vx))
	is("they act on one", false, "0")
	for _, m := range []string{"aggregate", "priority"} {
		if m := d.Status().Mechanism(m); m.State != control.Active {
			t.Errorf("%+v", m)
		}
	}
	ends(t, d)
}
