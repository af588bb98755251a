// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

const expresses = "pipeline: off\nmetrics: off\nmicroflows: {mode: off}\nexpress: forced\n"

// mechanismOf is a mechanism in a status.
func mechanismOf(t *testing.T, st control.Status, name string) control.Mechanism {
	t.Helper()
	for _, m := range st.Mechanisms {
		if m.Name == name {
			return m
		}
	}
	t.Fatalf("no mechanism %s in %+v", name, st.Mechanisms)
	return control.Mechanism{}
}

func expressOf(t *testing.T, st control.Status) control.Mechanism {
	t.Helper()
	return mechanismOf(t, st, "express")
}

func peek(t *testing.T, d *rig.Daemon) control.Status {
	t.Helper()
	st, err := d.Peek()
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Log())
	}
	return st
}

// onPath waits until frames go straight to a pod.
func onPath(t *testing.T, d *rig.Daemon) {
	t.Helper()
	const more = 1000
	was := peek(t, d).Counters.ExpressPackets
	rig.Until(t, "frames go straight to the pod", func() (bool, string) {
		st := peek(t, d)
		m := expressOf(t, st)
		return m.State == control.Active && st.Counters.ExpressPackets > was+more, fmt.Sprintf("%+v\n%+v", m, st.Counters)
	})
}

// passes waits until so many datagrams more have been sent.
func passes(t *testing.T, l *rig.Load, n uint64) {
	t.Helper()
	from := l.Sent()
	rig.Until(t, "datagrams are sent", func() (bool, string) {
		now := l.Sent() - from
		return now >= n, fmt.Sprint(now)
	})
}

// lands tells whether the pod's end of its veth is polled.
func lands(t *testing.T, p bed.Pod) (on bool) {
	t.Helper()
	must(t, p.NS.Do(func() error {
		f, err := ethtool.Features(bed.PodDev)
		on = f["rx-gro"].Active
		return err
	}))
	return on
}

// lost is what did not come of a load that has ended, but for what found the wire's ring full:
// the overlay without a daemon loses that, too.
func lost(t *testing.T, b *bed.Bed, l *rig.Load, v rig.Verdict, before bed.WireStats) uint64 {
	t.Helper()
	now, err := b.WireStats()
	must(t, err)
	gone := l.Sent() - v.Received
	return gone - min(gone, now.RxDropped-before.RxDropped)
}

// reached is what of a load was sent and did not find the wire's ring full.
func reached(t *testing.T, b *bed.Bed, l *rig.Load) uint64 {
	t.Helper()
	sent := l.Sent()
	now, err := b.WireStats()
	must(t, err)
	return sent - min(sent, now.RxDropped)
}

// Traffic is there before the daemon, goes by the bridge, straight to the pod, and by the
// bridge again.
func TestExpressComesWithTrafficAndGoesWithTheDaemon(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, tc := range []struct {
		name  string
		topo  bed.Topology
		flows int
		end   func(*testing.T, *rig.Daemon, bed.Pod)
	}{
		{"told to end, one flow", bed.Bridged, 1, told},
		{"told to end, eight flows", bed.Nested, 8, told},
		{"killed, one flow", bed.Nested, 1, killedAlone},
		{"killed, eight flows", bed.Bridged, 8, killedAlone},
		{"configured off", bed.Bridged, 8, func(t *testing.T, d *rig.Daemon, pod bed.Pod) {
			d.Reload(strings.Replace(expresses, "express: forced", "express: off", 1))
			rig.Until(t, "it is off", func() (bool, string) {
				m := expressOf(t, peek(t, d))
				on := lands(t, pod)
				return m.State == control.Off && !on, fmt.Sprintf("%+v, rx-gro of the pod's end: %t", m, on)
			})
			ends(t, d)
		}},
	} {
		if !turn() {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			b := lab(t, bed.Options{Topology: tc.topo})
			pod := b.Receiver().Pods[0]
			wire, err := b.WireStats()
			must(t, err)
			l := rig.StartSteady(t, b, tc.flows)
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: expresses})
			onPath(t, d)
			if !lands(t, pod) {
				t.Error("rx-gro of the pod's end is off")
			}
			journal, err := os.ReadFile(filepath.Join(d.Folder(), "journal"))
			must(t, err)
			if !strings.Contains(string(journal), "rx-gro") {
				t.Errorf("rx-gro of the pod's end is not in the journal:\n%s", journal)
			}
			// All but one frame of each sender now and then, which the bridge is to see.
			was, begun := peek(t, d).Counters, reached(t, b, l)
			passes(t, l, 10000)
			came, now := reached(t, b, l)-begun, peek(t, d).Counters
			if n := now.ExpressPackets - was.ExpressPackets; 100*(n+rig.InRing) < 98*came {
				t.Errorf("%d of %d frames went straight to the pod", n, came)
			}
			v := l.Verdict()
			t.Logf("on the way: %+v; left %d, unfit %v", v, now.ExpressLeft, now.ExpressUnfit)
			if v.Reordered+v.Duplicated+v.Stale > 0 || now.ExpressDrops > 0 {
				t.Errorf("on the way in, order was broken: %+v, %d found no room", v, now.ExpressDrops)
			}
			if w, err := b.WireStats(); err != nil || v.Missing > w.RxDropped-wire.RxDropped {
				t.Errorf("on the way in, %d were lost, %d of these on the wire (%v)", v.Missing, w.RxDropped-wire.RxDropped, err)
			}

			tc.end(t, d, pod)
			d.GoneBoth()
			d.NothingLeft()
			if lands(t, pod) {
				t.Error("rx-gro of the pod's end is still on")
			}
			l.GoesOn()
			v = l.Stop()
			t.Logf("after it: %+v", v)
			if v.Reordered > rig.InRing || v.Duplicated+v.Stale > 0 {
				t.Errorf("on the way out, order was broken: %+v", v)
			}
			if n := lost(t, b, l, v, wire); n > 0 {
				t.Errorf("%d of %d were lost", n, l.Sent())
			}
		})
	}
}

func told(t *testing.T, d *rig.Daemon, _ bed.Pod) {
	t.Helper()
	ends(t, d)
}

// killedAlone kills the daemon, not its guardian.
func killedAlone(t *testing.T, d *rig.Daemon, _ bed.Pod) {
	t.Helper()
	d.Signal(unix.SIGKILL)
	killed(t, d.Exited())
	d.GoneBoth()
}
