// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// device finds a device of a namespace and does something with it there.
func device(t *testing.T, ns *netns.Handle, name string, fn func(netlink.Link) error) {
	t.Helper()
	must(t, ns.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return fn(l)
	}))
}

// Latency traffic goes from the tunnel straight to the pod as long as no policy is
// between them, and by the bridge as soon as one is.
func TestRedirectPathsEndWhereAPolicyComes(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, topo := range []bed.Topology{bed.Bridged, bed.Nested} {
		if !turn() {
			continue
		}
		t.Run(string(topo), func(t *testing.T) {
			b := lab(t, bed.Options{Topology: topo})
			rx := b.Receiver()
			end := rx.Pods[0].HostEnd
			// The bridge is to see senders several times a second.
			rig.BridgeForgets(t, b, time.Second)
			config := fmt.Sprintf("pipeline: off\nmetrics: off\npriority: {mode: sync, rules: [{name: load, proto: udp, port: %d}]}\n", traffic.Port)
			d := rig.Start(t, rig.Spec{NS: rx.NS, Config: config})
			l := rig.StartLoad(t, b, 4)
			grows := func(what string) {
				t.Helper()
				was := d.Status().Counters
				rig.Until(t, what, func() (bool, string) {
					c := d.Status().Counters
					return c.ShortCut > was.ShortCut+1000 && c.Bridged > was.Bridged, fmt.Sprintf("%+v\n%+v", c, d.Status().Mechanisms)
				})
			}
			grows("redirect paths are taken, and senders are seen by the bridge")

			qdisc := func(l netlink.Link) *netlink.PfifoFast {
				return &netlink.PfifoFast{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(7, 0), Parent: netlink.HANDLE_ROOT}}
			}
			device(t, rx.Overlay, end, func(l netlink.Link) error { return netlink.QdiscAdd(qdisc(l)) })
			rig.Until(t, "the qdisc is noticed", func() (bool, string) {
				r := d.Status().Mechanism("priority").Reason
				return strings.Contains(r, "pfifo_fast"), r
			})
			was := d.Status().Counters
			rig.Until(t, "all goes by the bridge", func() (bool, string) {
				c := d.Status().Counters
				return c.Bridged > was.Bridged+1000, fmt.Sprintf("%+v", c)
			})
			if c := d.Status().Counters; c.ShortCut != was.ShortCut {
				t.Errorf("%d packets passed the qdisc by", c.ShortCut-was.ShortCut)
			}
			device(t, rx.Overlay, end, func(l netlink.Link) error {
				// The kernel gave the device a length for its first qdisc.
				return errors.Join(netlink.QdiscDel(qdisc(l)), netlink.LinkSetTxQLen(l, 0))
			})
			grows("redirect paths are taken again")

			// The kernel lets packets be overtaken where a mask comes or goes.
			orderly(t, l.Verdict())
			rig.SetQueue(t, rx.Pods[0].NS, bed.PodDev, "rps_cpus", "2")
			rig.Until(t, "RPS is noticed", func() (bool, string) {
				r := d.Status().Mechanism("priority").Reason
				return strings.Contains(r, "RPS moves the pod's packets"), r
			})
			rig.SetQueue(t, rx.Pods[0].NS, bed.PodDev, "rps_cpus", "0")
			grows("redirect paths are taken when RPS is gone")
			overtaken(t, l.Stop(), 2)
			ends(t, d)
		})
	}
}

// A routed pod's packets are the router's to judge: they go stage by stage.
func TestRoutedPodsHaveNoRedirectPath(t *testing.T) {
	b := lab(t, bed.Options{Topology: bed.Routed})
	config := fmt.Sprintf("pipeline: off\nmetrics: off\npriority: {mode: sync, rules: [{name: load, proto: udp, port: %d}]}\n", traffic.Port)
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: config})
	l := rig.StartLoad(t, b, 2)
	rig.Until(t, "latency traffic is seen", func() (bool, string) {
		c := d.Status().Counters
		return c.LatencyPackets > 1000, fmt.Sprintf("%+v", c)
	})
	st := d.Status()
	if st.Counters.ShortCut != 0 || !strings.Contains(st.Mechanism("priority").Reason, "stage by stage, no redirect path: ") {
		t.Errorf("%d by a redirect path; %s", st.Counters.ShortCut, st.Mechanism("priority").Reason)
	}
	orderly(t, l.Stop())
	ends(t, d)
}
