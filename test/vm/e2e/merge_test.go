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

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/governor"
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

func TestSplitFlowsComeInOrder(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds network namespaces and loads BPF programs")
	}
	if !hasBPFQdisc(t) {
		t.Skip("needs a kernel with BPF qdisc: Linux 6.16")
	}
	for _, batch := range []int{8, 32, 128} {
		t.Run(fmt.Sprintf("batch %d", batch), func(t *testing.T) { splitInOrder(t, batch) })
	}
}

func splitInOrder(t *testing.T, batch int) {
	var o overlay
	t.Cleanup(func() {
		if err := o.close(); err != nil {
			t.Error(err)
		}
	})
	if err := o.build("vxlan"); err != nil {
		t.Fatal(err)
	}
	o.onOneCore(t)
	name(t, o.hosts[1].pod)
	a, b := &o.hosts[0], &o.hosts[1]
	residue.Check(t, residue.Scope{Namespaces: []string{residue.FD(b.ns.FD()), residue.FD(b.pod.FD())}})
	d, stop := o.start(t, governor.TC, func(opts *daemon.Options) {
		opts.Mode = governor.Off
		opts.Microflows = daemon.Microflows{Mode: governor.Forced, Batch: batch, Cores: 1, Elephant: 1e4}
	})
	in4 := func(h *host) netip.Addr { return h.in4 }
	// A flow that is not split, beside it, and somebody in the pod.
	s := o.stream(t, in4)
	s.reach(t, 20)
	until(t, "a flow is split", func() bool {
		o.copyTCP(t, in4, 4<<20)
		return d.Status().Counters.Splits > 0
	})
	before, sent, was := netstat(t, b.pod), netstat(t, a.pod), d.Status().Counters
	o.copyTCP(t, in4, 8<<20)
	after, resent, is := netstat(t, b.pod), netstat(t, a.pod), d.Status().Counters
	s.reach(t, 20)
	defer s.finish(t)
	if err := stop(); err != nil {
		t.Errorf("the daemon ended: %v", err)
	}
	t.Logf("%d of %d packets split, in %d micro-flows; merge: %d passed, %d held, %d gaps, %d expired, %d unordered",
		is.SplitPackets-was.SplitPackets, is.OverlayPackets-was.OverlayPackets, is.Microflows-was.Microflows,
		is.MergePassed-was.MergePassed, is.MergeHeld-was.MergeHeld, is.MergeGaps-was.MergeGaps,
		is.MergeExpired-was.MergeExpired, is.MergeUnordered-was.MergeUnordered)
	ofo, rtx := after["TCPOFOQueue"]-before["TCPOFOQueue"], resent["RetransSegs"]-sent["RetransSegs"]
	t.Logf("in the pods: %d segments out of order, %d retransmitted", ofo, rtx)
	if is.MergeHeld == was.MergeHeld {
		t.Error("no packet had to wait: nothing was put in order")
	}
	// A core that stood still for longer than packets wait is the one excuse, and counted.
	stalled := is.MergeExpired != was.MergeExpired || is.MergeUnordered != was.MergeUnordered
	if ofo != 0 && !stalled {
		t.Errorf("%d segments came out of order", ofo)
	}
}
