// SPDX-License-Identifier: Apache-2.0

// Package polled makes a change to how a NIC receives between two of its polls.
//
// GRO keeps packets of a flow together as long as they are alike, for one poll (where HZ is 1000
// or more, packets of a full poll for longer: net/core/dev.c, __napi_poll). Whatever has packets of
// one flow treated in two ways within a poll, a feature that GRO joins them by, an XDP program on
// a veth, lets the later ones overtake those that it holds. A task never runs in the middle of a
// poll of its own core: a change that a task makes on the core that polls the NIC falls between
// two. Where several cores receive, that is so for the one that receives most.
package polled

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/privilege"
)

// Patience is how long a change waits for its core, which others may be taking. Then it is made
// wherever there is one: what is to be taken back has to be taken back.
const Patience = 100 * time.Millisecond

// MaxCores is above any CONFIG_NR_CPUS that distributions build.
const MaxCores = 8192

// Core is the core that receives most packets now, or -1. It looks for 5 ms.
func Core() int {
	const look = 5 * time.Millisecond
	before := received()
	time.Sleep(look)
	core, most := -1, uint32(0)
	for index, n := range received() {
		was, known := before[index]
		if known && n-was > most {
			core, most = int(index), n-was
		}
	}
	return core
}

// proc is looked for once.
var proc = sync.OnceValues(procfs.NewDefaultFS)

// Softnet is what the kernel counts of each core's receiving, in 32 bits.
func Softnet() ([]procfs.SoftnetStat, error) {
	fs, err := proc()
	if err != nil {
		return nil, fmt.Errorf("read softnet_stat: %w", err)
	}
	stats, err := fs.NetSoftnetStat()
	if err != nil {
		return nil, fmt.Errorf("read softnet_stat: %w", err)
	}
	return stats, nil
}

// received are the packets that each core has received, by its number; none if that cannot be told.
func received() map[uint32]uint32 {
	stats, _ := Softnet()
	n := make(map[uint32]uint32, len(stats))
	for _, s := range stats {
		n[s.Index] = s.Processed
	}
	return n
}

// On runs fn on the calling thread on a core, -1 for any, ahead of the threads that poll there. If
// it may not run there, or has not come to its end within Patience, it runs, or goes on, as others do.
func On(core int, fn func() error) error { return on(core, Patience, fn) }

// aheadOfPolls is a real-time priority above the one that priority gives NICs' threads.
const aheadOfPolls = 2

func on(core int, patience time.Duration, fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, there := unix.NewCPUSet(MaxCores), unix.NewCPUSet(MaxCores)
	policy, err := unix.SchedGetAttr(0, 0)
	if core < 0 || core >= MaxCores || err != nil || unix.SchedGetaffinityDynamic(0, was) != nil {
		return fn()
	}
	tid := unix.Gettid()
	back := func() { // of a thread of ours, to no more than it had: needs nothing
		_ = unix.SchedSetaffinityDynamic(tid, was)
		_ = unix.SchedSetAttr(tid, policy, 0)
	}
	if policy.Policy == unix.SCHED_NORMAL || policy.Policy == unix.SCHED_BATCH || policy.Policy == unix.SCHED_IDLE {
		_ = privilege.With(unix.CAP_SYS_NICE, func() error { // else it waits its turn
			return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: aheadOfPolls}, 0)
		})
	}
	there.Set(core)
	let := make(chan struct{})
	late := time.AfterFunc(patience, func() { back(); close(let) })
	_ = unix.SchedSetaffinityDynamic(0, there)
	err = fn()
	if !late.Stop() {
		<-let // this thread and no other
	}
	back() // however the two fell together
	return err
}

// Softirqs is the time that each core has spent in softirqs since boot.
func Softirqs() (map[int]time.Duration, error) {
	fs, err := proc()
	if err != nil {
		return nil, fmt.Errorf("read time in softirqs: %w", err)
	}
	stat, err := fs.Stat()
	if err != nil {
		return nil, fmt.Errorf("read time in softirqs: %w", err)
	}
	took := make(map[int]time.Duration, len(stat.CPU))
	for cpu, s := range stat.CPU {
		took[int(cpu)] = time.Duration(s.SoftIRQ * float64(time.Second))
	}
	return took, nil
}
