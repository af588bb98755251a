// SPDX-License-Identifier: Apache-2.0

// Package differential sends the same frames through a stock node and through one on which a
// mechanism acts, and compares what arrives at a pod: the bytes at its device and at its socket, and
// the order within a flow.
package differential

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/parser/packet"
)

func TestMain(m *testing.M) { rig.Main(m) }

const (
	mutated = 3000
	batch   = 100 // mutants that are sent at once
	// passes are how often all is sent. A flow takes an express path 100 ms after it was first seen.
	passes   = 3
	markPort = 10
	quiet    = "metrics: off\nmicroflows: {mode: off}\n"
)

// mechanism is what acts in a column of the table.
type mechanism struct {
	name, config string
	// joins: datagrams come joined at the pod's device, so that only its socket is compared.
	joins bool
	acts  func(control.Status) bool
	// known tells of a frame that comes to the pod's device and would not without that KNOWN_ISSUES.md
	// says so.
	known func(frame []byte) bool
}

func express(st control.Status) bool { return st.Counters.ExpressPackets > 1000 }

var mechanisms = []mechanism{
	{name: "express", config: "pipeline: off\naggregate: off\nexpress: forced\n", acts: express, known: wrongUDP},
	{name: "express, aggregate", config: "pipeline: off\naggregate: forced\nexpress: forced\n", joins: true, acts: express},
	{name: "aggregate", config: "pipeline: off\naggregate: forced\n", joins: true, acts: func(st control.Status) bool { return st.Counters.AggregatedPackets > 0 }},
	{name: "pipeline", config: "pipeline: forced\ntier: tc\naggregate: off\n", acts: func(st control.Status) bool { return st.Counters.SteeredPackets > 0 }},
	{name: "priority", config: fmt.Sprintf("pipeline: off\naggregate: off\npriority: {threads: fair, rules: [{name: data, proto: udp, port: %d}]}\n", dataPort),
		acts: func(st control.Status) bool { return st.Counters.LatencyPackets > 0 }},
}

// wrongUDP tells that a datagram's checksum says that it is not what was sent. Where the outer one says
// so as well, the full path ends at the tunnel, and the other one at the pod's socket.
func wrongUDP(f []byte) bool {
	if len(f) < rig.EthLen+20 {
		return false
	}
	ip, addrs, l4 := f[rig.EthLen:], 12, 20
	proto := ip[9]
	if binary.BigEndian.Uint16(f[12:]) == 0x86dd {
		addrs, l4, proto = 8, 40, ip[6]
	}
	if proto != 17 || len(ip) < l4+8 {
		return false
	}
	udp := ip[l4:]
	n := int(binary.BigEndian.Uint16(udp[4:]))
	if n < 8 || n > len(udp) || udp[6]|udp[7] == 0 {
		return false
	}
	return rig.Ones(slices.Concat(ip[addrs:l4], []byte{0, proto, udp[4], udp[5]}, udp[:n])) != 0xffff
}

// seen is what came of a batch.
type seen struct{ device, socket [][]byte }

// wire sends batches and collects what comes of them.
type wire struct {
	t      *testing.T
	c      *rig.Crate
	out    *rig.Tap
	device *rig.Tap // in the pod, or nil
	socket int      // UDP
	fresh  uint16   // port of the last flow that no program has seen before
	what   string   // is sent
	// patience is how long what is missing is waited for behind a mark.
	patience time.Duration
}

func newWire(t *testing.T, c *rig.Crate, device bool) *wire {
	t.Helper()
	b := c.Bed
	pod := b.Receiver().Pods[0]
	w := &wire{t: t, c: c, patience: rig.Patience, out: rig.NewTap(t, b.Sender().NS, b.Sender().Wire, [6]byte{})}
	if device {
		w.device = rig.NewTap(t, pod.NS, bed.PodDev, pod.MAC)
		if err := unix.SetsockoptInt(w.device.FD(), unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			t.Fatal(err)
		}
	}
	err := pod.NS.Do(func() (err error) {
		w.socket, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(w.socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		return unix.Bind(w.socket, &unix.SockaddrInet4{Port: dataPort})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	return w
}

// pass sends frames and returns what came of them: at least as much as is wanted, and all that came
// before what was sent behind them.
func (w *wire) pass(want seen, k kind) (got seen) {
	w.t.Helper()
	w.what = k.group + ": " + k.name
	w.out.Send(k.frames...)
	if k.moves {
		w.heal(k.frames[0])
	}
	w.collect(&got, want)
	// What is too much comes until another mark has.
	w.collect(&got, want)
	return got
}

// collect waits for what is wanted. Once something was waited for that did not come, the test fails: what else is
// missing need not be waited for as long.
func (w *wire) collect(got *seen, want seen) {
	w.t.Helper()
	inner, outer := w.mark()
	w.out.Send(outer)
	marked := false
	var since time.Time
	for {
		if marked && len(got.device) >= len(want.device) && len(got.socket) >= len(want.socket) {
			return
		}
		left := rig.Patience
		if marked {
			if since.IsZero() {
				since = time.Now()
			}
			if left = w.patience - time.Since(since); left <= 0 {
				w.patience = 300 * time.Millisecond
				return
			}
		}
		fds := []unix.PollFd{{Fd: int32(w.socket), Events: unix.POLLIN}}
		if w.device != nil {
			fds = append(fds, unix.PollFd{Fd: int32(w.device.FD()), Events: unix.POLLIN})
		}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 && !marked {
			w.t.Fatalf("what is sent behind %s does not come (%v)", w.what, err)
		}
		if w.device != nil {
			for _, f := range drain(w.device.FD()) {
				switch {
				case bytes.Equal(f, inner):
					marked = true
				case !noise(f):
					got.device = append(got.device, f)
				}
			}
		}
		for _, d := range drain(w.socket) {
			if w.device == nil && bytes.Equal(d, inner[innerUDP-innerAt+8:]) {
				marked = true
			} else {
				got.socket = append(got.socket, d)
			}
		}
	}
}

// mark is a frame that tells that what was sent before has come: of no flow, or where the test does
// not look at the pod's device, a datagram.
func (w *wire) mark() (inner, outer []byte) {
	inner, outer = w.c.Mark()
	if w.device != nil {
		return inner, outer
	}
	inner = w.c.Inner(w.c.IP(packet.IPv4{}), packet.UDP{Src: markPort, Dst: dataPort}, packet.Raw(inner))
	return inner, w.c.Outer(packet.IPv4{}, inner)
}

// noise is what the pods' own stacks send when they come up.
func noise(f []byte) bool {
	return len(f) > 20 && f[0] == 0x33 && f[12] == 0x86 && f[20] == 58
}

func drain(fd int) (list [][]byte) {
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if err != nil {
			return list
		}
		list = append(list, slices.Clone(buf[:n]))
	}
}

// flows are frames by flow, each in the order in which they came.
func flows(list [][]byte) map[string]string {
	all := map[string]string{}
	for _, f := range list {
		key := f[:min(len(f), 14)]
		switch {
		case len(f) >= 38 && binary.BigEndian.Uint16(f[12:]) == 0x0800:
			key = slices.Concat(key, f[23:24], f[26:38])
		case len(f) >= 58 && binary.BigEndian.Uint16(f[12:]) == 0x86dd:
			key = slices.Concat(key, f[20:21], f[22:58])
		}
		all[string(key)] += fmt.Sprintf("%x\n", f)
	}
	return all
}

// difference says how what came differs, or nothing.
func difference(stock, with seen, joins bool) string {
	var said []string
	if !joins {
		a, b := flows(stock.device), flows(with.device)
		if !maps.Equal(a, b) {
			said = append(said, fmt.Sprintf("at the device: %d frames, %d: %s", len(stock.device), len(with.device), first(a, b)))
		}
	}
	if a, b := count(stock.socket), count(with.socket); !maps.Equal(a, b) {
		said = append(said, fmt.Sprintf("at the socket: %d datagrams, %d", len(stock.socket), len(with.socket)))
	}
	return strings.Join(said, "; ")
}

func first(a, b map[string]string) string {
	for k := range a {
		if a[k] != b[k] {
			return fmt.Sprintf("stock\n%swith\n%s", a[k], b[k])
		}
	}
	for k := range b {
		if a[k] != b[k] {
			return fmt.Sprintf("stock none, with\n%s", b[k])
		}
	}
	return ""
}

func count(list [][]byte) map[string]int {
	n := map[string]int{}
	for _, d := range list {
		n[string(d)]++
	}
	return n
}

// heal tells the bridge again where the pod is, once it has seen the frame, and so one behind it of the
// same flow that no express path takes.
func (w *wire) heal(frame []byte) {
	w.t.Helper()
	pod := w.c.Bed.Receiver().Pods[0]
	tap := rig.NewTap(w.t, w.c.Bed.Receiver().Overlay, bed.Tunnel, pod.MAC)
	defer tap.Close()
	unlike, _ := w.c.Mark()
	behind := w.c.Inner(w.c.IP(packet.IPv4{Options: 4}), packet.UDP{Src: binary.BigEndian.Uint16(frame[innerUDP:]), Dst: dataPort}, packet.Raw(unlike))
	w.out.Send(w.c.Outer(packet.IPv4{}, behind))
	tap.Until(behind)
	tell(w.t, w.c.Bed, "bridge", "fdb", "replace", net.HardwareAddr(pod.MAC[:]).String(), "dev", pod.HostEnd, "master", "static")
}

// tell runs a command where the receiver's tunnel is.
func tell(t *testing.T, b *bed.Bed, name string, args ...string) {
	t.Helper()
	err := b.Receiver().Overlay.Do(func() error {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// result is what came of all batches of a pass.
type result []seen

// sendAll sends every batch once.
func sendAll(w *wire, batches []kind, want result) (got result) {
	for i, k := range batches {
		var expected seen
		if want != nil {
			expected = want[i]
		}
		got = append(got, w.pass(expected, k))
	}
	return got
}

// Whatever acts, at the pod arrives what arrives without.
func TestWhatArrivesIsWhatArrivesWithout(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{Pods: 2})
	rx, far := b.Receiver(), b.Sender()
	c := rig.NewCrate(t, b)
	// As container engines have it: the tunnel learns, and was told of the senders; bridges call
	// what iptables may have planted.
	tell(t, b, "ip", "link", "set", bed.Tunnel, "type", "vxlan", "learning")
	for _, mac := range [][]byte{far.Pods[0].MAC[:], far.Pods[1].MAC[:], lonelyMAC} {
		tell(t, b, "bridge", "fdb", "replace", net.HardwareAddr(mac).String(), "dev", bed.Tunnel, "dst", far.IP.String(), "self", "static")
	}
	tell(t, b, "sh", "-c", "for f in ip ip6; do if [ -e /proc/sys/net/bridge/bridge-nf-call-${f}tables ]; then echo 1 >/proc/sys/net/bridge/bridge-nf-call-${f}tables; fi; done")

	batches := kinds(c)
	byHand := len(batches)
	list := mutants(c, mutated)
	for i := 0; i < len(list); i += batch {
		batches = append(batches, kind{group: "mutated", name: fmt.Sprintf("%d to %d", i, i+batch), frames: list[i:min(i+batch, len(list))]})
	}
	// Those after which the pod has moved come last.
	slices.SortStableFunc(batches, func(a, b kind) int {
		switch {
		case a.moves == b.moves:
			return 0
		case a.moves:
			return 1
		}
		return -1
	})
	l := rig.StartLoad(t, b, 2, 1) // keeps the daemon awake, and goes to the other pod
	stock := map[bool][]result{}
	for _, device := range []bool{true, false} {
		w := newWire(t, c, device)
		sendAll(w, batches, nil) // what bridge and tunnel learn from them they know then
		for range passes {
			stock[device] = append(stock[device], sendAll(w, batches, nil))
		}
		w.close()
	}
	outcome := map[string]map[string][]string{} // by mechanism and group: what differs
	sizes := map[string]int{}
	for _, k := range batches {
		sizes[k.group] += len(k.frames)
	}
	for _, m := range mechanisms {
		t.Run(m.name, func(t *testing.T) {
			d := rig.Start(t, rig.Spec{NS: rx.NS, Config: quiet + m.config})
			rig.Until(t, m.name+" acts", func() (bool, string) {
				st, err := d.Peek()
				if err != nil {
					t.Fatal(err)
				}
				return m.acts(st) || m.name == "priority", fmt.Sprintf("%+v %+v", st.Mechanisms, st.Express)
			})
			w := newWire(t, c, !m.joins)
			differs, known := map[string][]string{}, 0
			for n := range passes {
				got := sendAll(w, batches, stock[!m.joins][n])
				for i, k := range batches {
					without := stock[!m.joins][n][i]
					if m.known != nil && difference(without, got[i], m.joins) != "" {
						before := count(without.device)
						got[i].device = slices.DeleteFunc(got[i].device, func(f []byte) bool { return before[string(f)] == 0 && m.known(f) })
						known++
					}
					why := difference(without, got[i], m.joins)
					if why == "" {
						continue
					}
					if !slices.Contains(differs[k.group], k.name) {
						differs[k.group] = append(differs[k.group], k.name)
					}
					t.Errorf("%s: %s, pass %d: %s", k.group, k.name, n+1, why)
				}
				if strings.Contains(m.config, "express:") {
					w.ages()
				}
			}
			if m.known != nil && known == 0 {
				t.Error("nothing differs that KNOWN_ISSUES.md says does")
			}
			st, err := d.Peek()
			if err != nil || !m.acts(st) {
				t.Errorf("%s does not act (%v): %+v", m.name, err, st.Counters)
			}
			t.Logf("%d went straight, unfit were %v; %d batches differ as KNOWN_ISSUES.md says", st.Counters.ExpressPackets, st.Counters.ExpressUnfit, known)
			outcome[m.name] = differs
			w.close()
			d.Signal(unix.SIGTERM)
			d.GoneBoth()
		})
	}
	l.Stop()
	t.Logf("%d kinds by hand, %d frames mutated, %d times each:\n%s", byHand, len(list), passes, grid(sizes, outcome))
}

func (w *wire) close() {
	if w.socket < 0 {
		return
	}
	unix.Close(w.socket)
	w.socket = -1
	w.out.Close()
	if w.device != nil {
		w.device.Close()
	}
}

// ages waits until flows that were seen in the last pass may take an express path: one that begins now
// does, which takes as long.
func (w *wire) ages() {
	w.t.Helper()
	pod := w.c.Bed.Receiver().Pods[0]
	host := rig.NewTap(w.t, w.c.Bed.Receiver().Overlay, pod.HostEnd, pod.MAC)
	defer host.Close()
	w.fresh++
	plain := w.c.Inner(w.c.IP(packet.IPv4{}), packet.UDP{Src: 20000 + w.fresh, Dst: dataPort + 100}, packet.Bytes(40))
	rig.Until(w.t, "a new flow goes straight to the pod", func() (bool, string) {
		inner, outer := w.c.Mark()
		w.out.Send(w.c.Outer(packet.IPv4{}, plain), outer)
		return !slices.ContainsFunc(host.Until(inner), func(f []byte) bool { return bytes.Equal(f, plain) }), "by the full path"
	})
	// What of it has come to the pod is no part of the next pass.
	w.collect(&seen{}, seen{})
}

// grid is the table of groups and mechanisms.
func grid(sizes map[string]int, outcome map[string]map[string][]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| frames | sent |")
	for _, m := range mechanisms {
		fmt.Fprintf(&b, " %s |", m.name)
	}
	for _, g := range slices.Sorted(maps.Keys(sizes)) {
		fmt.Fprintf(&b, "\n| %s | %d |", g, sizes[g])
		for _, m := range mechanisms {
			said := "not run"
			if o, ran := outcome[m.name]; ran {
				if said = "equal"; len(o[g]) > 0 {
					said = "differs: " + strings.Join(o[g], ", ")
				}
			}
			fmt.Fprintf(&b, " %s |", said)
		}
	}
	return b.String()
}
