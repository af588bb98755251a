// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// stretch is a container that datagrams come to in another way than by a pod's veth.
type stretch struct {
	name string
	ns   *netns.Handle
	from *netns.Handle // from where it is reached, by this address
	to   netip.Addr
	want string
}

// commands runs ip(8) commands in a namespace, one a line.
func commands(t *testing.T, ns *netns.Handle, script string) {
	t.Helper()
	must(t, ns.Do(func() error {
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(script)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip: %w\n%s", err, out)
		}
		return nil
	}))
}

// bursts sends datagrams in a row, until stop.
func bursts(t *testing.T, ns *netns.Handle, to netip.AddrPort) (stop func()) {
	t.Helper()
	var conn *net.UDPConn
	must(t, ns.Do(func() (err error) {
		conn, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
		return err
	}))
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			for range 32 {
				_, _ = conn.Write(make([]byte, 64)) // refused until the container listens
			}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
		must(t, conn.Close())
	}
}

// What is behind a pod, and what sits on the tunnel or its bridge without a veth, sees datagrams as they were sent.
func TestAggregationStandsAsideForWhatIsFurtherOn(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	rig.NeedCores(t, 2)
	speed.Turn(t)
	b := rig.Lab(t, bed.Options{Pods: 4})
	tx, rx := b.Sender(), b.Receiver()
	for _, p := range rx.Pods[1:] {
		rig.Unplug(t, rx, p)
	}
	pod, onBridge, onTunnel, inner := rx.Pods[0], rx.Pods[1], rx.Pods[2], rx.Pods[3]
	at := func(p bed.Pod) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.NS.FD()) }
	second := func(h, far *bed.Host) string {
		return fmt.Sprintf("link add vx9 mtu 1450 type vxlan id 99 local %s remote %s dstport 4789\nlink set vx9 up\n", h.IP, far.IP)
	}
	commands(t, tx.NS, second(tx, rx)+"addr add 10.99.0.1/24 dev vx9")
	commands(t, rx.NS, second(rx, tx)+fmt.Sprintf("link add link br0 name mv0 address %s netns %s type macvlan mode bridge\nlink add link vx9 name mv0 netns %s type macvlan mode bridge", net.HardwareAddr(onBridge.MAC[:]), at(onBridge), at(onTunnel)))
	commands(t, onBridge.NS, fmt.Sprintf("addr add %s/16 dev mv0\nlink set mv0 up", onBridge.IP4))
	commands(t, onTunnel.NS, "addr add 10.99.0.2/24 dev mv0\nlink set mv0 up")
	commands(t, pod.NS, fmt.Sprintf("link add vi type veth peer name eth0 netns %s\naddr add 10.98.0.1/24 dev vi\nlink set vi up", at(inner)))
	commands(t, inner.NS, "addr add 10.98.0.2/24 dev eth0\nlink set eth0 up\nroute add default via 10.98.0.1")
	const port = 9900
	nft(t, pod.NS, fmt.Sprintf("table ip nat { chain pre { type nat hook prerouting priority dstnat; udp dport %d dnat to 10.98.0.2; }; }", port))
	must(t, pod.NS.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }))
	check(t, b)

	d, l := aggregating(t, b, 0)
	for _, p := range []bed.Pod{onBridge, onTunnel} {
		if i := slices.IndexFunc(d.Status().Devices, func(dev control.Device) bool {
			return dev.Role == control.Pod && strings.HasSuffix(dev.Place.Mount, "-"+p.Name) && strings.Contains(dev.Reason, "its device is a macvlan")
		}); i < 0 {
			t.Errorf("status does not list %s: %+v", p.Name, d.Status().Devices)
		}
	}
	const counters = "table ip x { counter few { }; counter rest { }; chain f { type filter hook input priority 0; meta l4proto udp limit rate 1000/second burst 100 packets counter name few accept; meta l4proto udp counter name rest drop; }; }"
	for i, s := range []stretch{
		{"a container on macvlan over the bridge", onBridge.NS, tx.Pods[0].NS, onBridge.IP4, "of mv0 on br0"},
		{"a container on macvlan over the tunnel", onTunnel.NS, tx.NS, netip.MustParseAddr("10.99.0.2"), "of mv0 on vx9"},
		{"a container in a pod", inner.NS, tx.Pods[0].NS, pod.IP4, "behind vi, in the pod behind " + pod.HostEnd},
	} {
		if i > 0 {
			d.Reload(aggregates)
			rig.Until(t, "datagrams are joined again", func() (bool, string) {
				on := forwarding(t, b)
				return on[0], fmt.Sprint(on)
			})
		}
		nft(t, s.ns, counters)
		rig.Until(t, "status says what is in the way: "+s.name, func() (bool, string) {
			st := d.Status()
			said, err := json.Marshal([]any{st.Mechanisms, st.Devices})
			must(t, err)
			on := forwarding(t, b)
			return !on[0] && strings.Contains(string(said), s.want+", rule handle"), fmt.Sprintf("%s, wire and tunnel %v", said, on)
		})
		stop := bursts(t, s.from, netip.AddrPortFrom(s.to, port))
		began, before := time.Now(), [2]int{counterOf(t, s.ns, "few"), counterOf(t, s.ns, "rest")}
		rig.Until(t, "datagrams come to "+s.name, func() (bool, string) {
			n := counterOf(t, s.ns, "rest") - before[1]
			return n > 5000, fmt.Sprint(n)
		})
		n, most := counterOf(t, s.ns, "few")-before[0], 1000*time.Since(began).Seconds()+200
		stop()
		if float64(n) > most {
			t.Errorf("%s: %d packets passed, of %.0f that the limit has", s.name, n, most)
		}
		nft(t, s.ns, "delete table ip x")
	}
	ends(t, d)
	joined(t, l.Stop(), 4)
}
