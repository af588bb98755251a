// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/link"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/bpf"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// saysManual waits until status says that a device is another program's, for a
// reason that holds all of the words.
func saysManual(t *testing.T, d *rig.Daemon, words ...string) {
	t.Helper()
	rig.Until(t, "status says that the device is left alone", func() (bool, string) {
		st := d.Status()
		return slices.ContainsFunc(st.Devices, func(dev control.Device) bool {
			said := dev.Name + " " + dev.Inside + " " + dev.Reason
			return dev.State == control.Manual && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(said, w) })
		}), fmt.Sprintf("%+v", st.Devices)
	})
}

// What another program has set before is part of what the residue check compares with.
func TestForeignSteeringIsLeftAlone(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, tc := range []struct {
		name, attr, value string
		tunnel            bool
		reason            string
	}{
		{"mask on the tunnel", "rps_cpus", "1", true, "RPS mask set by another program"},
		{"flow table on the tunnel", "rps_flow_cnt", "64", true, "RFS table of 64 flows"},
		{"mask on a pod", "rps_cpus", "2", false, "RPS mask set by another program"},
		{"flow table on a pod", "rps_flow_cnt", "64", false, "RFS table of 64 flows"},
	} {
		if !turn() {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			rig.NeedCores(t, 2)
			b := rig.Lab(t, bed.Options{Pods: 2})
			rx := b.Receiver()
			ns, dev := rx.Overlay, bed.Tunnel
			if !tc.tunnel {
				ns, dev = rx.Pods[1].NS, bed.PodDev
			}
			rig.SetQueue(t, ns, dev, tc.attr, tc.value)
			check(t, b)
			set := rig.Queue(t, ns, dev, tc.attr)

			d := rig.Start(t, rig.Spec{NS: rx.NS, Config: forced})
			l := rig.StartLoad(t, b, 4)
			saysManual(t, d, dev, tc.reason)
			want := control.Active
			if tc.tunnel {
				want = control.Manual // there is no other tunnel
			}
			rig.Until(t, fmt.Sprintf("the pipeline is %s", want), func() (bool, string) {
				st := d.Status()
				return st.Mechanism("pipeline").State == want, fmt.Sprintf("%+v", st.Mechanisms)
			})
			if !tc.tunnel {
				// The other pod is served all the same.
				rig.Until(t, "the other pod has a mask", func() (bool, string) {
					return rig.Mask(t, rx.Pods[0].NS, bed.PodDev) != "", d.Log()
				})
			}
			if now := rig.Queue(t, ns, dev, tc.attr); now != set {
				t.Errorf("%s of %s is %s, was set to %s by another program", tc.attr, dev, now, set)
			}
			l.GoesOn()
			ends(t, d)
			l.GoesOn()
			left(t, d, l.Stop())
		})
	}
}

// A mask that is changed while the daemon acts is the administrator's from then
// on, and stays as it is when the daemon ends.
func TestMaskChangedUnderTheDaemonStaysAsItIs(t *testing.T) {
	b := lab(t, bed.Options{Pods: 2})
	d, l := start(t, b)
	pod := b.Receiver().Pods[1]
	rig.SetQueue(t, pod.NS, bed.PodDev, "rps_cpus", "1")
	t.Cleanup(func() { rig.SetQueue(t, pod.NS, bed.PodDev, "rps_cpus", "0") })
	// Once flows are drained it is as any mask that another program has set: until then it says "changed".
	saysManual(t, d, bed.PodDev, "by another program")
	l.GoesOn()
	ends(t, d)
	if said := "changed by another program from 3 to 1"; !strings.Contains(d.Log(), said) {
		t.Errorf("the log does not say %q:\n%s", said, d.Log())
	}
	if now := rig.Mask(t, pod.NS, bed.PodDev); now != "1" {
		t.Errorf("the mask is %q, was set to 1 by another program", now)
	}
	// What the administrator did is not guarded.
	overtaken(t, l.Stop(), 2)
}

// A pod that another program steered and lets go of is served like the others, by way
// of the stock path: its flows must not meet a new mask on their way.
func TestPodThatIsLetGoOfIsServed(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{Pods: 2})
	pod := b.Receiver().Pods[1]
	rig.SetQueue(t, pod.NS, bed.PodDev, "rps_cpus", "1")
	check(t, b)
	d, l := start(t, b)
	saysManual(t, d, bed.PodDev, "RPS mask set by another program")
	rig.SetQueue(t, pod.NS, bed.PodDev, "rps_cpus", "0")
	rig.Until(t, "the pod has a mask of ours", func() (bool, string) {
		return rig.Mask(t, pod.NS, bed.PodDev) != "", d.Log()
	})
	d.Says("changed hands") // flows were drained before
	d.Acting()
	l.GoesOn()
	ends(t, d)
	if now := rig.Mask(t, pod.NS, bed.PodDev); now != "" {
		t.Errorf("the mask is %q, was let go of", now)
	}
	rig.SetQueue(t, pod.NS, bed.PodDev, "rps_cpus", "1") // as the residue check found it
	// What the administrator did is not guarded.
	overtaken(t, l.Stop(), 2)
}

// attachXDP puts a foreign program on a device, until the test ends.
func attachXDP(t *testing.T, ns *netns.Handle, dev string) {
	t.Helper()
	var objs bpf.PassObjects
	must(t, bpf.LoadPassObjects(&objs, nil))
	defer objs.Close() // the link keeps the program
	must(t, ns.Do(func() error {
		ifi, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: objs.Pass, Interface: ifi.Index, Flags: link.XDPDriverMode})
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		return nil
	}))
}

func TestForeignXDPProgramIsLeftAlone(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{})
	rx := b.Receiver()
	attachXDP(t, rx.NS, rx.Wire)
	check(t, b)
	config := strings.Replace(forced, "tier: tc", "tier: xdp", 1)
	d := rig.Start(t, rig.Spec{NS: rx.NS, Config: config})
	l := rig.StartLoad(t, b, 4)
	saysManual(t, d, rx.Wire, "foreign XDP program")
	// The stages behind it are steered all the same.
	d.Acting()
	l.GoesOn()
	ends(t, d)
	left(t, d, l.Stop())
}
