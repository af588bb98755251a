// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"math"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// redirect sends so many frames to an entry of a map, as a driver does.
func (s *straight) redirect(m *ebpf.Map, entry uint32, frames int) {
	s.t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "Dual BSD/GPL", Instructions: asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Imm(asm.R2, int32(entry)), asm.Mov.Imm(asm.R3, 0), asm.FnRedirectMap.Call(), asm.Return(),
	}})
	s.must(err)
	defer prog.Close()
	_, err = prog.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: uint32(frames), Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES})
	s.must(err)
}

// Each frame that is lost behind an XDP program is counted, where the kernel refuses it itself as well.
func TestWhatIsLostBehindAnXDPProgramIsCounted(t *testing.T) {
	const frames = 64
	s := newStraight(t, 0)
	core := uint32(s.core)
	s.must(s.StartLanes(nil))
	// At a million a second a flood has lost so many after 71 minutes.
	s.cpu(func(c *stagesOlCpu) { c.LaneLost = math.MaxUint32 })
	lost := func(m *ebpf.Map, entry uint32) (lanes, lane, pods uint64) {
		var was, now stagesOlCpu
		before, err := s.Counters()
		s.must(err, s.stages.OlCpus.Lookup(core, &was))
		s.redirect(m, entry, frames)
		after, err := s.Counters()
		s.must(err, s.stages.OlCpus.Lookup(core, &now))
		return after.XDPDrop - before.XDPDrop, now.LaneLost - was.LaneLost, after.ExpressDrop - before.ExpressDrop
	}

	if lanes, lane, pods := lost(s.xdp.OlExpressPorts, s.port); lanes != 0 || lane != 0 || pods != 0 {
		t.Errorf("a pod takes all: %d, %d, %d lost", lanes, lane, pods)
	}
	in(t, s.host, "ip", "link", "set", "pod0", "down")
	if lanes, lane, pods := lost(s.xdp.OlExpressPorts, s.port); lanes != 0 || lane != 0 || pods != frames {
		t.Errorf("a pod's device is down: %d, %d lost by lanes, %d by pods; want %d", lanes, lane, pods, frames)
	}
	for _, m := range []*ebpf.Map{s.stages.OlLaneThreads, s.stages.OlLatencyThreads} {
		s.must(m.Put(core, cpumapValue{QSize: 1}))
		lanes, lane, pods := lost(m, core)
		own := lanes // of the lane of bulk
		if m == s.stages.OlLatencyThreads {
			own = 0
		}
		if lanes == 0 || lane != own || pods != 0 {
			t.Errorf("%s has room for one frame: %d lost, %d by the core's own lane of bulk, %d by pods", m, lanes, lane, pods)
		}
	}
}

// refusing is a holder that refuses the link after so many.
type refusing struct{ after, held int }

func (r *refusing) Hold(string, int) (letGo func() error, err error) {
	if r.after == 0 {
		return nil, errors.New("refused")
	}
	r.after--
	r.held++
	return func() error { r.held--; return nil }, nil
}

// What counts losses is attached once, however often that fails before: without it a flow cannot leave a full
// lane, and twice it counts each loss twice.
func TestWhatCountsLossesIsAttachedAllOrNotAtAll(t *testing.T) {
	d := load(t)
	before := len(d.tracer)
	for _, tt := range []struct {
		what     string
		attach   func() error
		programs int
	}{
		{"paths to pods", func() error { return d.SetExpress(true) }, 4},
		{"lanes", func() error { return d.StartLanes(nil) }, 1},
	} {
		// Each link is refused once. Those before it are kept where they are a set of their own.
		var r *refusing
		held, programs := 0, 0
		for tries := 0; ; tries++ {
			r = &refusing{after: tries}
			d.holder = r
			err := tt.attach()
			held += r.held
			if programs = len(d.tracer) - before; programs != held {
				t.Fatalf("%s, try %d: %d links are held, %d are known", tt.what, tries, held, programs)
			}
			if err == nil {
				break
			}
		}
		if programs != tt.programs {
			t.Errorf("%s: %d programs are attached, want %d", tt.what, programs, tt.programs)
		}
		before = len(d.tracer)
	}
	d.holder = nil
}
