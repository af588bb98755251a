// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// steered waits until a pod's device has the same mask as that of another.
func steered(t *testing.T, d *rig.Daemon, p, like bed.Pod) {
	t.Helper()
	want := rig.Mask(t, like.NS, bed.PodDev)
	rig.Until(t, "the new pod has its mask", func() (bool, string) {
		now := rig.Mask(t, p.NS, bed.PodDev)
		return now == want && now != "", fmt.Sprintf("it has %q, the other pod %q\n%s", now, want, d.Log())
	})
}

// named reports whether status knows a device by that name.
func named(d *rig.Daemon, dev string) (bool, string) {
	st := d.Status()
	for _, known := range st.Devices {
		if known.Name == dev {
			return true, fmt.Sprintf("%+v", known)
		}
	}
	return false, fmt.Sprintf("%+v", st.Devices)
}

func podPackets(d *rig.Daemon) (n uint64) {
	for _, lane := range d.Status().Lanes {
		if lane.Stage == "pod" {
			n += lane.Packets
		}
	}
	return n
}

func TestPodsThatComeAreSteeredAndThoseThatGoAreForgotten(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{Pods: 2})
	host := b.Receiver()
	first, second := host.Pods[0], host.Pods[1]
	rig.Unplug(t, host, second)
	t.Run("with residue check", func(t *testing.T) {
		check(t, b)
		d := rig.Start(t, rig.Spec{NS: host.NS, Config: forced})
		l := rig.StartLoad(t, b, 2, 0)
		d.Acting()
		rig.Plug(t, host, second)
		steered(t, d, second, first)
		orderly(t, l.Stop())

		// Now it is the new pod's packets alone.
		l = rig.StartLoad(t, b, 2, 1)
		before := podPackets(d)
		rig.Until(t, "packets of the new pod go to a lane of the pod stage", func() (bool, string) {
			n := podPackets(d) - before
			return n > 500, fmt.Sprint(n)
		})
		orderly(t, l.Stop())

		rig.Unplug(t, host, second)
		rig.Until(t, "status forgets the pod", func() (bool, string) {
			known, said := named(d, second.HostEnd)
			return !known, said
		})
		// Its device is gone, and so is what the journal says of it.
		rig.Until(t, "the journal forgets the pod", func() (bool, string) {
			journal, err := os.ReadFile(filepath.Join(d.Folder(), "journal"))
			if err != nil {
				return false, err.Error()
			}
			cookie, err := second.NS.Cookie()
			must(t, err)
			return !strings.Contains(string(journal), fmt.Sprintf(`"netns":%d,`, cookie)), string(journal)
		})
		ends(t, d)
	})
}

// A daemon must not keep the namespaces of dead containers alive: with them
// would live their veths. Nor may anything grow with their number.
func TestContainersComeAndGoAndNothingGrows(t *testing.T) {
	b := lab(t, bed.Options{})
	host := b.Receiver()
	d, l := start(t, b)
	nl := rig.In(t, host.Overlay)
	defer nl.Close()
	round := func(n int) {
		p, remove := rig.Container(t, b, n)
		rig.Plug(t, host, p)
		steered(t, d, p, host.Pods[0])
		remove()
		rig.Until(t, "the kernel frees the container's namespace", func() (bool, string) {
			_, err := nl.LinkByName(p.HostEnd)
			return err != nil, fmt.Sprintf("%s is still there, the daemon has open:\n%s", p.HostEnd, strings.Join(rig.OpenFiles(t, d.PID), "\n"))
		})
		rig.Until(t, "status forgets the container", func() (bool, string) {
			known, said := named(d, p.HostEnd)
			return !known, said
		})
	}
	round(0)
	fds := rig.OpenFiles(t, d.PID)
	for n := range 6 {
		round(n + 1)
	}
	rig.Until(t, "as many files are open as after the first container", func() (bool, string) {
		now := rig.OpenFiles(t, d.PID)
		return len(now) <= len(fds), fmt.Sprintf("%d files, were %d:\n%v\n%v", len(now), len(fds), now, fds)
	})
	orderly(t, l.Stop())
	ends(t, d)
}

// While flows are steered programs come to many new pods in steps, between which the daemon decides. In
// the end each has its own and its mask, and none has a mask before.
func TestManyPodsThatComeAtOnceAreSteered(t *testing.T) {
	b := lab(t, bed.Options{})
	host := b.Receiver()
	d, l := start(t, b)
	want := rig.Mask(t, host.Pods[0].NS, bed.PodDev)
	var pods []bed.Pod
	var gone []func()
	for n := range 40 {
		p, remove := rig.Container(t, b, n)
		rig.Plug(t, host, p)
		pods, gone = append(pods, p), append(gone, remove)
	}
	rig.Until(t, "all pods have masks", func() (bool, string) {
		masks := 0
		for _, p := range pods {
			if rig.Mask(t, p.NS, bed.PodDev) != want {
				continue
			}
			masks++
			if attached := on(t, host.Overlay, p.HostEnd, ebpf.AttachTCXEgress); !slices.Contains(attached, "ol_pod_out") {
				t.Fatalf("pod %s has a mask and the programs %v", p.HostEnd, attached)
			}
		}
		return masks == len(pods), fmt.Sprintf("%d of %d\n%s", masks, len(pods), d.Log())
	})
	for _, remove := range gone {
		remove()
	}
	rig.Until(t, "status forgets the pods", func() (bool, string) {
		known := slices.DeleteFunc(d.Status().Devices, func(dev control.Device) bool { return dev.Role != control.Pod })
		return len(known) == 1, fmt.Sprintf("%+v", known)
	})
	orderly(t, l.Stop())
	ends(t, d)
}

// A tunnel that goes while it is steered takes its settings with it, and neither
// the daemon nor its way back.
func TestTunnelGoesWhileItIsSteered(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{})
	check(t) // the machine's: this lab does not stay as it is
	host := b.Receiver()
	d, l := start(t, b)
	l.Stop()
	nl := rig.In(t, host.Overlay)
	defer nl.Close()
	tunnel, err := nl.LinkByName(bed.Tunnel)
	must(t, err)
	must(t, nl.LinkDel(tunnel))
	rig.Until(t, "status forgets the tunnel", func() (bool, string) {
		known, said := named(d, bed.Tunnel)
		return !known, said
	})
	ends(t, d)
	if now := rig.Mask(t, host.Pods[0].NS, bed.PodDev); now != "" {
		t.Errorf("the pod's mask is %s, was none", now)
	}
}
