// SPDX-License-Identifier: Apache-2.0

package order

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// stalls makes receive work on every core wait now and then, each core on its
// own: as on a machine that is shared with others, where one queue fills while
// the next runs empty. The traffic alone would not find what only a late core
// can break.
type stalls struct {
	prog *ebpf.Program
	stop chan struct{}
	wg   sync.WaitGroup
	errs chan error
}

// stallSteps is how many times one run of the program asks for the time, some
// 30 ns each: a run keeps the core from receiving for a third of a millisecond.
const stallSteps = 10000

func stall(t *testing.T) *stalls {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "stall", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R6, stallSteps),
			asm.FnKtimeGetNs.Call().WithSymbol("again"),
			asm.Sub.Imm(asm.R6, 1),
			asm.JNE.Imm(asm.R6, 0, "again"),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatalf("load stall: %v", err)
	}
	s := &stalls{prog: prog, stop: make(chan struct{}), errs: make(chan error, runtime.NumCPU())}
	for core := range runtime.NumCPU() {
		s.wg.Go(func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			if err := s.run(core); err != nil {
				s.errs <- err
			}
		})
	}
	return s
}

func (s *stalls) run(core int) error {
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("go to core %d: %w", core, err)
	}
	rng := rand.New(rand.NewPCG(uint64(core), 1))
	frame := make([]byte, 64)
	for {
		select {
		case <-s.stop:
			return nil
		case <-time.After(time.Duration(rng.IntN(20)) * time.Millisecond):
		}
		// Receive softirqs are off while the program runs, not between.
		for range 1 + rng.IntN(4) {
			if _, err := s.prog.Run(&ebpf.RunOptions{Data: frame}); err != nil {
				return fmt.Errorf("stall core %d: %w", core, err)
			}
		}
	}
}

func (s *stalls) end() error {
	close(s.stop)
	s.wg.Wait()
	close(s.errs)
	err := s.prog.Close()
	for e := range s.errs {
		err = e
	}
	return err
}
