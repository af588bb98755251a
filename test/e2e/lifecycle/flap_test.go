// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// steersOn waits until packets are steered, beyond those that have been.
func steersOn(t *testing.T, d *rig.Daemon) {
	t.Helper()
	was := peek(t, d).Counters.SteeredPackets
	rig.Until(t, "packets are steered", func() (bool, string) {
		st := peek(t, d)
		return st.Counters.SteeredPackets > was+1000, fmt.Sprintf("%+v\n%s", st, d.Log())
	})
}

// A link that goes down and comes up takes packets with it, and neither order nor the daemon,
// which steers again, by as many programs as before.
func TestLinksThatFlap(t *testing.T) {
	speed.Long(t)
	for _, tier := range []string{"tc", "xdp"} {
		t.Run(tier, func(t *testing.T) {
			// The threads that poll a NIC end when it goes down, and the lab's are scheduled by the lab.
			b := lab(t, bed.Options{NIC: bed.Softirq, Pods: 2})
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: strings.Replace(forced, "tier: tc", "tier: "+tier, 1)})
			l := rig.StartSteady(t, b, 4)
			d.Acting()
			rx, tx := b.Receiver(), b.Sender()
			links := []struct {
				name string
				ns   *netns.Handle
				dev  string
			}{
				{"the NIC's other end", tx.NS, tx.Wire},
				{"the NIC", rx.NS, rx.Wire},
				{"the tunnel", rx.Overlay, bed.Tunnel},
				{"a pod's veth", rx.Overlay, rx.Pods[1].HostEnd},
				{"a pod's own end", rx.Pods[1].NS, bed.PodDev},
			}
			late := uint64(0)
			flap := func(times int) {
				for _, at := range links {
					for range times {
						device(t, at.ns, at.dev, netlink.LinkSetDown)
						device(t, at.ns, at.dev, netlink.LinkSetUp)
					}
					l.GoesOn()
					steersOn(t, d)
					if v := l.Verdict(); v.Reordered > late {
						t.Errorf("%s: %d were late", at.name, v.Reordered-late)
						late = v.Reordered
					}
				}
			}
			flap(1)
			before := d.Holds(b)
			flap(3)
			rig.Until(t, "the daemon holds no more than it did", func() (bool, string) {
				now := d.Holds(b)
				return now.Within(before.Objects) && now.Files <= before.Files, fmt.Sprintf("%s, held %s", now, before)
			})
			ends(t, d)
			l.GoesOn()
			left(t, d, l.Stop())
		})
	}
}

// A device that goes, and another one that comes under its name, or under its number, too, before
// the daemon has looked: it serves the new one, and takes nothing of the old one for its own.
func TestADeviceThatIsReplacedIsServedAnew(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, tc := range []struct {
		name   string
		number bool
	}{{"same name", false}, {"same name and number", true}} {
		if !turn() {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			b := rig.Lab(t, bed.Options{Pods: 2})
			rig.NeedCores(t, 2)
			check(t) // the machine's: this lab does not stay as it is
			host := b.Receiver()
			first, second := host.Pods[0], host.Pods[1]
			d := rig.Start(t, rig.Spec{NS: host.NS, Config: forced})
			l := rig.StartSteady(t, b, 2, 0)
			d.Acting()
			steered(t, d, second, first)
			// The daemon does not look meanwhile.
			d.Signal(unix.SIGSTOP)
			replaceVeth(t, host, second, tc.number)
			if mask := rig.Mask(t, second.NS, bed.PodDev); mask != "" {
				t.Fatalf("a new device has the mask %s", mask)
			}
			d.Signal(unix.SIGCONT)
			steered(t, d, second, first)
			if v := l.Stop(); v.Reordered+v.Duplicated+v.Stale > 0 {
				t.Errorf("%+v", v)
			}
			// Now it is the new device's packets alone.
			l = rig.StartSteady(t, b, 2, 1)
			before := podPackets(d)
			rig.Until(t, "packets to the new device go to a lane of the pod stage", func() (bool, string) {
				n := podPackets(d) - before
				return n > 500, fmt.Sprintf("%d\n%s", n, d.Log())
			})
			l.GoesOn()
			ends(t, d)
			if mask := rig.Mask(t, second.NS, bed.PodDev); mask != "" {
				t.Errorf("the mask of the new device is %s, was none", mask)
			}
			if v := l.Stop(); v.Duplicated+v.Stale > 0 {
				t.Errorf("%+v", v)
			}
		})
	}
}

// A tunnel and a pod's device get other names while they are steered: their masks stay the daemon's, and go with it.
func TestRenamedDevicesAreRestored(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, tc := range []struct {
		name string
		end  func(t *testing.T, d *rig.Daemon, rename func())
	}{
		{"before the daemon looks, and told to end", func(t *testing.T, d *rig.Daemon, rename func()) {
			d.Signal(unix.SIGSTOP)
			rename()
			d.Signal(unix.SIGTERM)
			d.Signal(unix.SIGCONT)
		}},
		{"steered on, then off", func(t *testing.T, d *rig.Daemon, rename func()) {
			rename()
			rig.Until(t, "the tunnel is steered by its new name", func() (bool, string) {
				st := d.Status()
				at := slices.IndexFunc(st.Devices, func(dev control.Device) bool { return dev.Name == "renamed" })
				return at >= 0 && st.Devices[at].State == control.Active, fmt.Sprintf("%+v", st.Devices)
			})
			steersOn(t, d)
			if r := d.Verb("off"); r.Code != 0 {
				t.Errorf("overlane off: %s", r)
			}
		}},
	} {
		if !turn() {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			b := lab(t, bed.Options{Pods: 2})
			host := b.Receiver()
			pod := host.Pods[1]
			rename := func(from, to [2]string) {
				t.Helper()
				device(t, host.Overlay, from[0], func(l netlink.Link) error { return netlink.LinkSetName(l, to[0]) })
				device(t, pod.NS, from[1], func(l netlink.Link) error { return netlink.LinkSetName(l, to[1]) })
			}
			was, now := [2]string{bed.Tunnel, bed.PodDev}, [2]string{"renamed", "renamed1"}
			d, l := start(t, b)
			tc.end(t, d, func() { rename(was, now) })
			if code := d.Exited().ExitCode(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			d.GoneBoth()
			if tunnel, in := rig.Mask(t, host.Overlay, now[0]), rig.Mask(t, pod.NS, now[1]); tunnel+in != "" {
				t.Errorf("masks are %q and %q, were none", tunnel, in)
			}
			rename(now, was)
			d.NothingLeft()
			left(t, d, l.Stop())
		})
	}
}

// replaceVeth deletes a pod's veth and makes another one of the same name, all in one go.
func replaceVeth(t *testing.T, host *bed.Host, p bed.Pod, sameNumber bool) {
	t.Helper()
	var out, in string
	if sameNumber {
		device(t, host.Overlay, p.HostEnd, func(l netlink.Link) error { out = fmt.Sprintf("index %d", l.Attrs().Index); return nil })
		device(t, p.NS, bed.PodDev, func(l netlink.Link) error { in = fmt.Sprintf("index %d", l.Attrs().Index); return nil })
	}
	script := fmt.Sprintf(`link del %[1]s
link add %[1]s %[2]s mtu %[3]d type veth peer name %[4]s %[5]s address %[6]s netns /proc/%[8]d/fd/%[9]d
link set %[1]s master %[7]s up
`, p.HostEnd, out, bed.OverlayMTU, bed.PodDev, in, net.HardwareAddr(p.MAC[:]), bed.Bridge, os.Getpid(), p.NS.FD())
	commands(t, host.Overlay, script)
	device(t, p.NS, bed.PodDev, func(l netlink.Link) error {
		addr, err := netlink.ParseAddr(p.IP4.String() + "/16")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(l), netlink.AddrAdd(l, addr))
	})
}
