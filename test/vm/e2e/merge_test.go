// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/residue"
)

// hasBPFQdisc asks the kernel's type information, as nothing of the product does.
func hasBPFQdisc(t *testing.T) bool {
	t.Helper()
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	var f *btf.Func
	return spec.TypeByName("bpf_qdisc_skb_drop", &f) == nil
}

// netstat reads a namespace's TCP counters, by the names of /proc/net/netstat and snmp.
func netstat(t *testing.T, ns *netns.Handle) map[string]int {
	t.Helper()
	values := map[string]int{}
	for _, file := range []string{"netstat", "snmp"} {
		var data []byte
		err := ns.Do(func() (err error) {
			data, err = os.ReadFile("/proc/thread-self/net/" + file)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		for i := 0; i+1 < len(lines); i += 2 {
			names, numbers := strings.Fields(lines[i]), strings.Fields(lines[i+1])
			for j := 1; j < len(names) && j < len(numbers); j++ {
				if n, err := strconv.Atoi(numbers[j]); err == nil {
					values[names[j]] = n
				}
			}
		}
	}
	return values
}

// onOneCore has what a pod sends leave its host from one core: else it would overtake
// itself there.
func (o *overlay) onOneCore(t *testing.T) {
	t.Helper()
	root, err := o.hosts[0].ns.Sysfs()
	if err == nil {
		err = errors.Join(root.WriteFile("class/net/"+vethDev+"/queues/rx-0/rps_cpus", []byte("1"), 0), root.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// name gives a namespace a name while the test runs: no process is in it, and the daemon
// would not find it.
func name(t *testing.T, ns *netns.Handle) {
	t.Helper()
	const dir = "/run/netns"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.CreateTemp(dir, "overlane-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(f.Name(), unix.MNT_DETACH), os.Remove(f.Name())); err != nil {
			t.Error(err)
		}
	})
	err = errors.Join(f.Close(), unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.FD()), f.Name(), "", unix.MS_BIND, ""))
	if err != nil {
		t.Fatal(err)
	}
}

// needMerge skips where the kernel has no merge points.
func needMerge(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds network namespaces and loads BPF programs")
	}
	if !hasBPFQdisc(t) {
		t.Skip("needs a kernel with BPF qdisc: Linux 6.16")
	}
}

// v4 is a host's pod's address.
func v4(h *host) netip.Addr { return h.in4 }

// splitting is an overlay in whose second host elephants are split.
type splitting struct {
	overlay
	d    *daemon.Daemon
	stop func() error
}

// split builds an overlay, and waits until a flow is split.
func split(t *testing.T, batch int) *splitting {
	t.Helper()
	s := lay(t)
	residue.Check(t, s.all())
	s.begin(t, batch)
	return s
}

// lay builds an overlay in whose second host flows can be split.
func lay(t *testing.T) *splitting {
	t.Helper()
	s := &splitting{}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.build("vxlan"); err != nil {
		t.Fatal(err)
	}
	s.onOneCore(t)
	name(t, s.hosts[1].pod)
	return s
}

// all is all of the second host, and of its pod.
func (s *splitting) all() residue.Scope {
	b := &s.hosts[1]
	return residue.Scope{Namespaces: []string{residue.FD(b.ns.FD()), residue.FD(b.pod.FD())}}
}

func (s *splitting) begin(t *testing.T, batch int) {
	t.Helper()
	s.d, s.stop = s.start(t, governor.TC, splits(batch))
	until(t, "a flow is split", func() bool {
		s.copyTCP(t, v4, 4<<20)
		return s.d.Status().Counters.Splits > 0
	})
}

// elephant is in bytes a second: more than a stream sends, less than whoever sends all
// that goes, on an emulated machine.
const elephant = 2e5

func splits(batch int) func(*daemon.Options) {
	return func(opts *daemon.Options) {
		opts.Mode = governor.Off
		opts.Microflows = daemon.Microflows{Mode: governor.Forced, Batch: batch, Cores: 1, Elephant: elephant}
	}
}

// end ends the daemon, which leaves nothing waiting anywhere.
func (s *splitting) end(t *testing.T) {
	t.Helper()
	if err := s.stop(); err != nil {
		t.Errorf("the daemon ended: %v", err)
	}
}

// tally is what has happened by some moment.
type tally struct {
	daemon    control.Counters
	pod, peer map[string]int // TCP's counters: of who receives, of who sends
}

func (s *splitting) count(t *testing.T) tally {
	t.Helper()
	return tally{daemon: s.d.Status().Counters, pod: netstat(t, s.hosts[1].pod), peer: netstat(t, s.hosts[0].pod)}
}

// toll is what happened between two of them.
type toll struct {
	split, microflows, splits                   uint64
	passed, held, gaps, expired, unordered, out uint64
	late, resent                                int
}

func (s *splitting) since(t *testing.T, was tally) toll {
	t.Helper()
	is := s.count(t)
	a, b := is.daemon, was.daemon
	d := toll{
		split: a.SplitPackets - b.SplitPackets, microflows: a.Microflows - b.Microflows, splits: a.Splits - b.Splits,
		passed: a.MergePassed - b.MergePassed, held: a.MergeHeld - b.MergeHeld, gaps: a.MergeGaps - b.MergeGaps,
		expired: a.MergeExpired - b.MergeExpired, unordered: a.MergeUnordered - b.MergeUnordered, out: a.MergeDropped - b.MergeDropped,
		late: is.pod["TCPOFOQueue"] - was.pod["TCPOFOQueue"], resent: is.peer["RetransSegs"] - was.peer["RetransSegs"],
	}
	t.Logf("%d packets split into %d micro-flows, %d times begun; merge: %d passed, %d held, %d gaps, %d expired, %d unordered, %d dropped; in the pods: %d out of order, %d sent again",
		d.split, d.microflows, d.splits, d.passed, d.held, d.gaps, d.expired, d.unordered, d.out, d.late, d.resent)
	return d
}

func TestSplitFlowsComeInOrder(t *testing.T) {
	needMerge(t)
	for _, batch := range []int{8, 32, 128} {
		t.Run(fmt.Sprintf("batch %d", batch), func(t *testing.T) {
			s := split(t, batch)
			// A flow that is not split, beside it, and somebody in the pod.
			small := s.stream(t, v4)
			small.reach(t, 20)
			was := s.count(t)
			s.copyTCP(t, v4, 8<<20)
			d := s.since(t, was)
			small.reach(t, 20)
			defer small.finish(t)
			s.end(t)
			d.inOrder(t)
		})
	}
}

// UDP is put in order by numbers: also what a branch brings late, and beside losses.
func TestSplitDatagramsComeInOrder(t *testing.T) {
	needMerge(t)
	s := split(t, 16)
	u := s.send(t, v4, 64, 4*time.Millisecond)
	was := s.count(t)
	until(t, "datagrams wait for others", func() bool { return s.d.Status().Counters.MergeHeld > was.daemon.MergeHeld })
	was = s.count(t)
	u.reach(t, 10_000)
	for range 5 {
		hog(t, 1, 30*time.Millisecond)
		u.reach(t, 500)
	}
	loss, err := traffic.DropEvery(s.hosts[1].ns, wireDev, 100)
	if err != nil {
		t.Fatal(err)
	}
	u.reach(t, 10_000)
	lost, err := loss.Dropped()
	if err := errors.Join(err, loss.Close()); err != nil {
		t.Fatal(err)
	}
	d := s.since(t, was)
	u.reach(t, 100)
	s.end(t)
	u.reach(t, 100)
	if d.expired+d.unordered == 0 {
		u.finishWith(t, lost)
	} else {
		t.Log("a core stood still for longer than packets wait: order is not judged")
		u.finishLate(t, lost)
	}
	if d.held == 0 || d.gaps == 0 {
		t.Errorf("%d packets waited, and %d times one was not waited for; %d were lost", d.held, d.gaps, lost)
	}
}

// inOrder asks that packets had to wait, and none came out of order. A core that stood
// still for longer than packets wait is the one excuse, and counted.
func (d toll) inOrder(t *testing.T) {
	t.Helper()
	if d.held == 0 {
		t.Error("no packet had to wait: nothing was put in order")
	}
	if d.late != 0 && d.expired+d.unordered == 0 {
		t.Errorf("%d segments came out of order", d.late)
	}
}
