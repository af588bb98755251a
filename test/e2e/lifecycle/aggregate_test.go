// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

const aggregates = "pipeline: off\nmetrics: off\nmicroflows: {mode: off}\naggregate: auto\n"

// forwarding is what a feature of the wire and of the tunnel is.
func forwarding(t *testing.T, b *bed.Bed) (on [2]bool) {
	t.Helper()
	rx := b.Receiver()
	const feature = "rx-udp-gro-forwarding"
	must(t, rx.NS.Do(func() error {
		f, err := ethtool.Features(rx.Wire)
		on[0] = f[feature].Active
		return err
	}))
	must(t, rx.Overlay.Do(func() error {
		f, err := ethtool.Features(bed.Tunnel)
		on[1] = f[feature].Active
		return err
	}))
	return on
}

// aggregating starts a daemon that joins the datagrams of a load to pods, all if none is named.
func aggregating(t *testing.T, b *bed.Bed, pods ...int) (*rig.Daemon, *rig.Load) {
	t.Helper()
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: aggregates})
	rig.Until(t, "the idle node is left as it is", func() (bool, string) {
		m := d.Status().Mechanism("aggregate")
		return strings.HasPrefix(m.Reason, "fewer than"), fmt.Sprintf("%+v", m)
	})
	if on := forwarding(t, b); on != [2]bool{} {
		t.Fatalf("on an idle node, wire and tunnel: %v", on)
	}
	l := rig.StartLoad(t, b, 2, pods...)
	rig.Until(t, "datagrams are joined", func() (bool, string) {
		c := d.Status().Counters
		return c.SuperPackets > 100 && c.AggregatedPackets > 2*c.SuperPackets, fmt.Sprintf("%+v", c)
	})
	if on := forwarding(t, b); on != [2]bool{true, true} {
		t.Fatalf("while it acts, wire and tunnel: %v", on)
	}
	return d, l
}

// joined judges the order of a load during which aggregation ended so often: what GRO had
// collected in one poll may have been overtaken.
func joined(t *testing.T, v rig.Verdict, ends uint64) {
	t.Helper()
	t.Logf("%d of %d datagrams were overtaken", v.Reordered, v.Received)
	if v.Reordered > ends*2*rig.Poll+1+v.Received/10000+v.Requeued || v.Duplicated+v.Stale > 0 {
		t.Errorf("order was broken: %+v", v)
	}
}

func TestAggregationComesWithTrafficAndGoesWithTheDaemon(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, tt := range []struct {
		name string
		end  func(*testing.T, *bed.Bed, *rig.Daemon)
	}{
		{"told to end", func(t *testing.T, _ *bed.Bed, d *rig.Daemon) {
			d.Signal(unix.SIGTERM)
			if code := d.Exited().ExitCode(); code != 0 {
				t.Errorf("exit code %d", code)
			}
		}},
		{"killed", func(t *testing.T, _ *bed.Bed, d *rig.Daemon) {
			d.Signal(unix.SIGKILL)
			killed(t, d.Exited())
		}},
		{"configured off", func(t *testing.T, b *bed.Bed, d *rig.Daemon) {
			d.Reload("pipeline: off\nmetrics: off\nmicroflows: {mode: off}\naggregate: off\n")
			rig.Until(t, "it is off", func() (bool, string) {
				m := d.Status().Mechanism("aggregate")
				on := forwarding(t, b)
				return m.Name == "aggregate" && m.State == control.Off && on == [2]bool{}, fmt.Sprintf("%+v, wire and tunnel: %v", m, on)
			})
			d.Signal(unix.SIGTERM)
			d.Exited()
		}},
	} {
		if !turn() {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			b := lab(t, bed.Options{})
			d, l := aggregating(t, b)
			l.GoesOn()
			tt.end(t, b, d)
			d.GoneBoth()
			d.NothingLeft()
			if on := forwarding(t, b); on != [2]bool{} {
				t.Errorf("after it, wire and tunnel: %v", on)
			}
			l.GoesOn()
			joined(t, l.Stop(), 1)
		})
	}
}

// A program that switches it off again has the last word.
func TestAggregationLeavesAloneWhatAnotherProgramSwitchesOff(t *testing.T) {
	b := lab(t, bed.Options{})
	d, l := aggregating(t, b)
	rx := b.Receiver()
	must(t, rx.NS.Do(func() error { return ethtool.SetFeature(rx.Wire, "rx-udp-gro-forwarding", false) }))
	rig.Until(t, "status says that it is another program's", func() (bool, string) {
		st := d.Status()
		for _, dev := range st.Devices {
			if dev.State == control.Manual {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", st.Devices)
	})
	if on := forwarding(t, b); on != [2]bool{false, true} {
		t.Errorf("wire and tunnel: %v", on)
	}
	d.Signal(unix.SIGTERM)
	d.Exited()
	d.GoneBoth()
	if on := forwarding(t, b); on != [2]bool{} {
		t.Errorf("after it, wire and tunnel: %v", on)
	}
	joined(t, l.Stop(), 2)
}

// What was seen of TCP says nothing of datagrams that come after it: they are looked at long before the same load would be.
func TestAggregationSeesDatagramsAfterTCP(t *testing.T) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("needs iperf3")
	}
	b := lab(t, bed.Options{})
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: aggregates})
	end := func(h *bed.Host) traffic.Endpoint { return traffic.Endpoint{NS: h.Pods[0].NS, Addr: h.Pods[0].IP4} }
	tcp, err := traffic.StartTCP(t.Context(), end(b.Sender()), end(b.Receiver()), traffic.TCPConfig{Streams: 2, Length: rig.Patience})
	must(t, err)
	t.Cleanup(tcp.Stop)
	var before control.Mechanism
	rig.Until(t, "TCP is judged", func() (bool, string) {
		before = d.Status().Mechanism("aggregate")
		return before.State == control.Standby && strings.Contains(before.Reason, "datagrams that come in a row; looked at again"), fmt.Sprintf("%+v", before)
	})
	tcp.Stop()
	l := rig.StartLoad(t, b, 2)
	rig.Until(t, "datagrams are joined", func() (bool, string) {
		st := d.Status()
		return st.Counters.SuperPackets > 100, fmt.Sprintf("%+v", st.Mechanism("aggregate"))
	})
	const pause = 30 * time.Second
	if m := d.Status().Mechanism("aggregate"); m.State == control.Active && m.Since.Sub(before.Since) > pause {
		t.Errorf("it acts since %s, and stood by since %s", m.Since, before.Since)
	}
	d.Signal(unix.SIGTERM)
	d.Exited()
	d.GoneBoth()
	joined(t, l.Stop(), 1)
}
