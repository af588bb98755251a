// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds network namespaces")
	}
}

var serial int

func testOptions(t *testing.T) Options {
	serial++
	return Options{Name: fmt.Sprintf("t%d%d", os.Getpid()%100000, serial), StateDir: filepath.Join(t.TempDir(), "lab")}
}

func up(t *testing.T, o Options) *Bed {
	t.Helper()
	needRoot(t)
	b, err := Up(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Down(); err != nil && !errors.Is(err, ErrNotUp) {
			t.Error(err)
		}
	})
	return b
}

// traces lists what of a lab can be found from outside of it.
func traces(t *testing.T, name string) []string {
	t.Helper()
	found, err := filepath.Glob("/run/netns/ol" + name + "-*")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/ol"+name+"-") {
			found = append(found, "mount: "+line)
		}
	}
	return found
}

func deviceNames(t *testing.T) []string {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	return names
}

// deliver sends one datagram from a pod to another and waits for it.
func deliver(t *testing.T, from, to Pod, src, dst netip.Addr) {
	t.Helper()
	var rx, tx *net.UDPConn
	if err := to.NS.Do(func() (err error) {
		rx, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, 7000)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer rx.Close()
	if err := from.NS.Do(func() (err error) {
		tx, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, 7001)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, 7000)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	if _, err := tx.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	rx.SetReadDeadline(time.Now().Add(3 * time.Second))
	buf := make([]byte, 64)
	n, err := rx.Read(buf)
	if err != nil {
		t.Fatalf("%s to %s: %v", src, dst, err)
	}
	if string(buf[:n]) != "hello" {
		t.Fatalf("%s to %s: got %q", src, dst, buf[:n])
	}
}

func TestEveryTopologyCarriesPackets(t *testing.T) {
	for _, topo := range []Topology{Bridged, Routed, Nested} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/ipv6=%t", topo, v6), func(t *testing.T) {
				o := testOptions(t)
				o.Topology, o.IPv6, o.Pods = topo, v6, 2
				b := up(t, o)
				before, err := LinkStats(b.Receiver().Overlay, Tunnel)
				if err != nil {
					t.Fatal(err)
				}
				sent := uint64(0)
				for i := range 2 {
					from, to := b.Sender().Pods[i], b.Receiver().Pods[1-i]
					deliver(t, from, to, from.IP4, to.IP4)
					sent++
					if v6 {
						deliver(t, from, to, from.IP6, to.IP6)
						sent++
					}
				}
				after, err := LinkStats(b.Receiver().Overlay, Tunnel)
				if err != nil {
					t.Fatal(err)
				}
				if got := after.RxPackets - before.RxPackets; got < sent {
					t.Errorf("%d packets crossed the tunnel, %d were sent through it", got, sent)
				}
			})
		}
	}
}

func TestDownLeavesNothing(t *testing.T) {
	needRoot(t)
	before := deviceNames(t)
	o := testOptions(t)
	b := up(t, o)
	if diff := cmp.Diff(before, deviceNames(t)); diff != "" {
		t.Errorf("a device of the lab shows up outside:\n%s", diff)
	}
	tids, err := b.NAPIThreads()
	if err != nil || len(tids) != 1 {
		t.Fatalf("NAPI threads: %v, %v", tids, err)
	}
	var sleeper *exec.Cmd
	if err := b.Receiver().NS.Do(func() error {
		sleeper = exec.Command("sleep", "100")
		return sleeper.Start()
	}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- sleeper.Wait() }()
	if err := b.Down(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("a process in the lab ended by itself")
	}
	if left := traces(t, o.Name); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := os.Stat(o.StateDir); err == nil {
		t.Error("state directory left behind")
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", tids[0])); err == nil {
		t.Error("NAPI thread left behind")
	}
	if diff := cmp.Diff(before, deviceNames(t)); diff != "" {
		t.Errorf("devices changed:\n%s", diff)
	}
	if err := Down(o.StateDir, o.Name); !errors.Is(err, ErrNotUp) {
		t.Errorf("second down: %v", err)
	}
}

// A killed Up leaves a record and a part of the namespaces, one perhaps
// created but not yet mounted.
func TestDownEndsWhatAKilledUpBegan(t *testing.T) {
	needRoot(t)
	o := testOptions(t)
	if err := o.Normalize(); err != nil {
		t.Fatal(err)
	}
	if err := record(&o); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"hA", "hB"} {
		if err := addNamed(o.nsName(host)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile("/run/netns/"+o.nsName("cA"), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if _, err := Up(o); !errors.Is(err, ErrExists) {
		t.Errorf("up over a half-built lab: %v", err)
	}
	if err := Down(o.StateDir, o.Name); err != nil {
		t.Fatal(err)
	}
	if left := traces(t, o.Name); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestTwoLabsDoNotSeeEachOther(t *testing.T) {
	a, b := up(t, testOptions(t)), up(t, testOptions(t))
	ta, err := a.NAPIThreads()
	if err != nil {
		t.Fatal(err)
	}
	tb, err := b.NAPIThreads()
	if err != nil {
		t.Fatal(err)
	}
	if len(ta) != 1 || len(tb) != 1 || ta[0] == tb[0] {
		t.Errorf("NAPI threads %v and %v", ta, tb)
	}
	for _, l := range []*Bed{a, b} {
		deliver(t, l.Sender().Pods[0], l.Receiver().Pods[0], l.Sender().Pods[0].IP4, l.Receiver().Pods[0].IP4)
	}
	if err := a.Down(); err != nil {
		t.Fatal(err)
	}
	deliver(t, b.Sender().Pods[0], b.Receiver().Pods[0], b.Sender().Pods[0].IP4, b.Receiver().Pods[0].IP4)
	again, err := Open(b.StateDir, b.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if diff := cmp.Diff(b.Hosts[B].Pods[0].MAC, again.Hosts[B].Pods[0].MAC); diff != "" {
		t.Error(diff)
	}
}

func TestQueuesHaveAThreadEach(t *testing.T) {
	o := testOptions(t)
	o.Queues = 2
	b := up(t, o)
	tids, err := b.NAPIThreads()
	if err != nil {
		t.Fatal(err)
	}
	for q, tid := range tids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("Cpus_allowed_list:\t%d\n", q); !strings.Contains(string(data), want) {
			t.Errorf("thread of queue %d is not on core %d", q, q)
		}
	}
	if len(tids) != 2 {
		t.Errorf("%d threads for 2 queues", len(tids))
	}
}

// Frames that find the wire's ring full go back to the sending end's queue, and are counted: they may be overtaken there.
func TestFramesThatFindTheWireFullAreCounted(t *testing.T) {
	b := up(t, testOptions(t))
	tids, err := b.NAPIThreads()
	if err != nil {
		t.Fatal(err)
	}
	// The ring fills while its thread has the core for what others leave of it.
	if err := unix.SchedSetAttr(tids[0], &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil {
		t.Fatal(err)
	}
	var c net.Conn
	if err := b.Sender().NS.Do(func() (err error) {
		c, err = net.Dial("udp", netip.AddrPortFrom(b.Receiver().IP, 9).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before, err := b.WireStats()
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		for range 10_000 {
			_, _ = c.Write([]byte("full")) // refused, at times: nothing reads it
		}
		now, err := b.WireStats()
		if err != nil {
			t.Fatal(err)
		}
		if now.Requeued > before.Requeued {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("none was counted: %+v", now)
		}
	}
}

// A variant that moves the wire's threads compares something else than it says.
func TestThreadsOfTheWireAreScheduledAsAsked(t *testing.T) {
	for _, p := range []NAPI{Nice, FIFO} {
		t.Run(string(p), func(t *testing.T) {
			o := testOptions(t)
			o.NAPI = p
			b := up(t, o)
			again, err := Open(b.StateDir, b.Name)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if again.NAPI != p {
				t.Errorf("the record says %s", again.NAPI)
			}
			if err := b.KeptNAPI(); err != nil {
				t.Error(err)
			}
			tids, err := b.NAPIThreads()
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range []unix.SchedAttr{{Policy: unix.SCHED_NORMAL, Nice: -13}, {Policy: unix.SCHED_FIFO, Priority: 2},
				{Policy: unix.SCHED_NORMAL, Nice: niceValue, Runtime: 100_000}} {
				a.Size = unix.SizeofSchedAttr
				if err := unix.SchedSetAttr(tids[0], &a, 0); err != nil {
					t.Fatal(err)
				}
				if err := b.KeptNAPI(); err == nil || !strings.Contains(err.Error(), b.Polling()) {
					t.Errorf("%+v passes for %s: %v", a, b.Polling(), err)
				}
			}
			if err := b.Reset(); err != nil {
				t.Fatal(err)
			}
			if err := b.KeptNAPI(); err != nil {
				t.Errorf("after a reset: %v", err)
			}
		})
	}
}
