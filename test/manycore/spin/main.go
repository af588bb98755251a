// SPDX-License-Identifier: Apache-2.0

//go:build amd64

// Command spin shows what cores of a machine do beside one another: how many rounds of a loop each
// makes in a second, and how long a wakeup takes from one core to another and back.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	length = 50 * time.Millisecond
	pings  = 2000
	// instructions of a round
	perRound = 100_000
)

// loop executes n instructions, an even number.
func loop(n uint64)

// Result is what it prints, as JSON.
type Result struct {
	// Rounds a second, of each core, by how many span at once.
	Rounds map[int][]float64
	// PingPong is how many nanoseconds a wakeup takes to the second core and back.
	PingPong float64 `json:",omitempty"`
}

func main() {
	r, err := measure(runtime.NumCPU())
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "spin:", err)
		os.Exit(1)
	}
}

func measure(cores int) (r Result, err error) {
	r.Rounds = map[int][]float64{}
	counts := []int{cores}
	for k := 1; k < cores; k *= 2 {
		counts = append(counts, k)
	}
	slices.Sort(counts)
	for _, k := range counts {
		if r.Rounds[k], err = spin(k); err != nil {
			return r, err
		}
	}
	if cores > 1 {
		r.PingPong, err = pingPong()
	}
	return r, err
}

// pinned runs f on a core.
func pinned(core int, f func()) error {
	runtime.LockOSThread() // and the thread ends with its goroutine
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("core %s: %w", strconv.Itoa(core), err)
	}
	f()
	return nil
}

// spin has k cores run a loop from the same time on.
func spin(k int) ([]float64, error) {
	rates, errs := make([]float64, k), make([]error, k)
	var ready atomic.Int32
	var all sync.WaitGroup
	for i := range k {
		all.Go(func() {
			errs[i] = pinned(i, func() {
				for ready.Add(1); ready.Load() < int32(k); {
					runtime.Gosched()
				}
				var took []time.Duration
				begin := time.Now()
				for now := begin; now.Sub(begin) < length; {
					loop(perRound)
					then := now
					now = time.Now()
					took = append(took, now.Sub(then))
				}
				// Half of the rounds at least nothing interrupted: of one core timers of all threads of
				// this program take a hundredth.
				slices.Sort(took)
				rates[i] = 1 / took[len(took)/2].Seconds()
			})
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return rates, nil
}

// pingPong has two cores wake each other by eventfds.
func pingPong() (ns float64, err error) {
	var fds [2]int
	for i := range fds {
		if fds[i], err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
			return 0, err
		}
		defer unix.Close(fds[i])
	}
	// Without Go's scheduler, which would hand the thread's work to others.
	move := func(call uintptr, fd int, b *[8]byte) {
		unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(b)), 8)
	}
	var errs [2]error
	var all sync.WaitGroup
	all.Go(func() {
		errs[1] = pinned(1, func() {
			b := new([8]byte)
			for range pings {
				move(unix.SYS_READ, fds[0], b)
				*b = [8]byte{1}
				move(unix.SYS_WRITE, fds[1], b)
			}
		})
	})
	all.Go(func() {
		errs[0] = pinned(0, func() {
			b := new([8]byte)
			begin := time.Now()
			for range pings {
				*b = [8]byte{1}
				move(unix.SYS_WRITE, fds[0], b)
				move(unix.SYS_READ, fds[1], b)
			}
			ns = float64(time.Since(begin).Nanoseconds()) / pings
		})
	})
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return ns, nil
}
