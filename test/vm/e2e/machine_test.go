// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/napi"
	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/test/residue"
)

// These tests change what all of the machine shares.
var machineWide = flag.Bool("machine-wide", false, "take cores offline and change sysctls of the whole machine: for emulated machines")

var backlogThreads = flag.Bool("backlog-threads", false, "expect that threads poll the backlogs, as after the boot option thread_backlog_napi")

// tasks are those whose names begin so, by their directories.
func tasks(t *testing.T, begin string) []string {
	t.Helper()
	comms, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(comms, func(file string) bool {
		comm, err := os.ReadFile(file) // it may have ended since
		return err != nil || !strings.HasPrefix(string(comm), begin)
	})
}

// runs tells whether there is a task of that name.
func runs(t *testing.T, name string) bool {
	t.Helper()
	return len(tasks(t, name+"\n")) > 0
}

func needMachine(t *testing.T) {
	t.Helper()
	if !*machineWide {
		t.Skip("needs a machine of its own (-machine-wide)")
	}
}

const (
	core1   = "/sys/devices/system/cpu/cpu1/online"
	backlog = "/proc/sys/net/core/netdev_max_backlog"
)

// set writes a value of the machine, and puts back what was there at the end.
func set(t *testing.T, file, value string) {
	t.Helper()
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write := func(v string) error { return os.WriteFile(file, []byte(v), 0) }
	if err := write(value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := write(strings.TrimSpace(string(was))); err != nil {
			t.Errorf("put back %s: %v", file, err)
		}
	})
}

func online() ([]int, error) {
	data, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, err
	}
	return config.ParseCPUList(string(data))
}

// acting is an overlay through whose second host a stream is steered.
func acting(t *testing.T) (*stream, *daemon.Daemon, func() error) {
	t.Helper()
	return actingIn(t, governor.TC)
}

func actingIn(t *testing.T, tier governor.Tier, changes ...func(*daemon.Options)) (*stream, *daemon.Daemon, func() error) {
	t.Helper()
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
	b := &o.hosts[1]
	residue.Check(t, residue.Scope{Namespaces: []string{residue.FD(b.ns.FD()), residue.FD(b.pod.FD())}})
	s := o.stream(t, families[0].of)
	s.reach(t, 50)
	d, stop := o.start(t, tier, changes...)
	steers(t, d, 200)
	return s, d, stop
}

// steers waits until the daemon has steered so many packets more.
func steers(t *testing.T, d *daemon.Daemon, n uint64) {
	t.Helper()
	begin := d.Status().Counters.SteeredPackets
	var st control.Status
	until(t, fmt.Sprintf("the pipeline steers %d packets", n), func() bool {
		st = d.Status()
		return st.State != control.Running || st.Counters.SteeredPackets >= begin+n
	})
	if st.State != control.Running {
		t.Fatalf("the daemon runs no more: %+v", st)
	}
}

// A core that goes offline takes no more work, and does again when it is back;
// meanwhile everything arrives, in order.
func TestALanesCoreGoesOfflineAndComesBack(t *testing.T) {
	needMachine(t)
	s, d, stop := acting(t)
	set(t, core1, "0")
	until(t, "core 1 is used no more", func() bool {
		st := d.Status()
		return slices.Equal(st.Cores, []int{0}) && len(st.Lanes) == 0
	})
	s.reach(t, 100)
	if err := os.WriteFile(core1, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	steers(t, d, 200)
	if got := d.Status().Cores; !slices.Equal(got, []int{0, 1}) {
		t.Errorf("cores after core 1 came back: %v", got)
	}
	if err := stop(); err != nil {
		t.Errorf("the daemon ended: %v", err)
	}
	s.reach(t, 50)
	s.finish(t)
}

// A core that is back before the daemon has looked which ones are online gets a new lane: the thread of the old one may
// run anywhere since. The machine may take longer than that: the daemon sees both cores all the time.
func TestALanesCoreIsAwayForAMoment(t *testing.T) {
	needMachine(t)
	s, d, stop := actingIn(t, governor.XDP, func(opts *daemon.Options) {
		opts.Online = func() ([]int, error) { return []int{0, 1}, nil }
	})
	was := tasks(t, "cpumap/1/")
	if len(was) == 0 {
		t.Fatal("core 1 has no lane")
	}
	set(t, core1, "0")
	if err := os.WriteFile(core1, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	until(t, "core 1 has a new lane", func() bool {
		now := tasks(t, "cpumap/1/")
		return len(now) > 0 && !slices.ContainsFunc(now, func(task string) bool { return slices.Contains(was, task) })
	})
	steers(t, d, 200)
	if err := stop(); err != nil {
		t.Errorf("the daemon ended: %v", err)
	}
	s.reach(t, 50)
	s.finish(t)
}

// A core that goes offline takes the NIC's thread's affinity with it. The daemon binds
// the thread to another core, and when none is left, as soon as there is one.
func TestTheNICsThreadIsBoundAgainWhenItsCoreGoesOffline(t *testing.T) {
	needMachine(t)
	var o overlay
	t.Cleanup(func() {
		if err := o.close(); err != nil {
			t.Error(err)
		}
	})
	if err := o.build("vxlan"); err != nil {
		t.Fatal(err)
	}
	b := &o.hosts[1]
	residue.Check(t, residue.Scope{Namespaces: []string{residue.FD(b.ns.FD()), residue.FD(b.pod.FD())}})
	d, stop := o.start(t, governor.TC, func(opts *daemon.Options) {
		opts.Pipeline.Mode, opts.Cores = governor.Off, []int{1}
		opts.Priority.Rules = []rules.Rule{{Name: "ssh", Class: rules.Latency, Proto: 6, Port: 22}}
	})
	bound := func(core int) {
		t.Helper()
		want := fmt.Sprintf("fifo, cores [%d]", core)
		until(t, "the NIC's thread has "+want, func() bool { return b.thread(t) == want })
	}
	use := func(cores ...int) { o.use(t, d, cores...) }
	bound(1)
	use(0, 1)
	bound(1)
	set(t, core1, "0")
	bound(0)
	back := func() {
		t.Helper()
		if err := os.WriteFile(core1, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
	back()
	until(t, "core 1 is used again", func() bool { return slices.Equal(d.Status().Cores, []int{0, 1}) })
	bound(0)
	use(1)
	bound(1)
	set(t, core1, "0")
	until(t, "no core is used", func() bool { return len(d.Status().Cores) == 0 })
	back()
	bound(1)
	if err := stop(); err != nil {
		t.Errorf("the daemon ended: %v", err)
	}
}

// thread is how the one thread is scheduled that polls the host's NIC.
func (h *host) thread(t *testing.T) (how string) {
	t.Helper()
	err := h.ns.Do(func() error {
		nic, err := net.InterfaceByName(wireDev)
		if err != nil {
			return err
		}
		tids, err := napi.Threads(nic.Index, 1)
		if err != nil || len(tids) != 1 {
			return fmt.Errorf("threads of the NIC: %v, %w", tids, err)
		}
		id, err := apply.IdentifyThread(tids[0])
		if err != nil {
			return err
		}
		s, err := apply.SchedOf(id)
		how = fmt.Sprintf("%s, cores %v", s.Policy, s.Cores)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return how
}

// With hardly any room in the backlogs the kernel drops; what it drops there is
// counted as the lane's, and what arrives is in order.
func TestDropsOfATinyBacklogAreCounted(t *testing.T) {
	needMachine(t)
	s, d, stop := acting(t)
	set(t, backlog, "1")
	until(t, "a lane drops", func() bool {
		return slices.ContainsFunc(d.Status().Lanes, func(l control.Lane) bool { return l.Drops > 0 })
	})
	set(t, backlog, "1000")
	s.reach(t, 200)
	dropped := uint64(0)
	for _, l := range d.Status().Lanes {
		dropped += l.Drops
	}
	if err := stop(); err != nil {
		t.Errorf("the daemon ended: %v", err)
	}
	s.reach(t, 50)
	s.finishWith(t, dropped)
}
