// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/bpf"
	"github.com/overlane/overlane/internal/lab/datagram"
	"golang.org/x/sys/unix"
)

// LiveConfig says what a live-frame generator sends.
type LiveConfig struct {
	Flows    []Flow
	Schedule []uint16 // indexes into Flows, see Rates; nil: in turn
	Size     int      // UDP payload in bytes
	Mixed    []int    // further sizes, which come by chance as often as Size, the largest; IPv4 only
	Stamp    bool     // datagrams carry their time of sending, if Size allows
	Core     int      // where it runs; decides the wire queue
	Batch    int      // frames between two chances for softirqs; 0: 64
	// Eager generators compete for their core like any program, instead of
	// taking what is left: not for measurements.
	Eager bool
	Gap   time.Duration // between two frames; 0: as fast as it can
	// MakeUp is the longest delay after which frames that are due are sent in one
	// heap; after a longer one they are left out. 0: 1 ms.
	MakeUp time.Duration
	// Window limits the frames under way, of all generators that share the
	// checker's count of them. 0: no limit.
	Window   int
	UnderWay *ebpf.Map
	// Patience is how long the window waits for frames before it takes them
	// for lost. 0: 50 ms.
	Patience time.Duration
}

// Live is a running live-frame generator: the kernel itself sends prebuilt
// frames through the wire, about 0.2 us of one core each. It only takes what
// others leave of its core.
type Live struct {
	objs   bpf.GenObjects
	keeps  *dispatched
	thread *thread
	stop   atomic.Bool
	// stopping ends the goroutine that interrupts it, which then closes ended.
	stopping, ended chan struct{}
	size            int
	frags           int
}

// StartLive starts to send from the sending host of a bed.
func StartLive(b *bed.Bed, cfg LiveConfig) (_ *Live, err error) {
	if len(cfg.Flows) == 0 {
		return nil, errors.New("start generator: no flows")
	}
	host := b.Sender()
	wire, err := bed.Ifindex(host.NS, host.Wire)
	if err != nil {
		return nil, fmt.Errorf("start generator: %w", err)
	}
	first, size, err := buildFrame(&cfg.Flows[0], cfg.Size)
	if err != nil {
		return nil, err
	}
	probeLen := datagram.MinSize
	if cfg.Stamp && size >= datagram.StampedSize {
		probeLen = datagram.StampedSize
	}
	spec, err := bpf.LoadGen()
	if err != nil {
		return nil, fmt.Errorf("load generator: %w", err)
	}
	spec.Maps["templates"].MaxEntries = uint32(len(cfg.Flows))
	variables := map[string]any{
		"wire_ifindex": uint32(wire),
		"hdr_len":      uint32(first.hdrLen),
		"ip_off":       uint32(first.ipOff),
		"frags":        uint32(first.frags),
		"frag_units":   uint32(first.perFrag / 8),
		"probe_len":    uint32(probeLen),
		"gap_ns":       uint64(cfg.Gap),
		"window":       uint64(cfg.Window),
	}
	if len(cfg.Mixed) > 0 {
		if err := mix(variables, &cfg, size, first); err != nil {
			return nil, err
		}
	}
	if cfg.MakeUp > 0 {
		variables["make_up_ns"] = uint64(cfg.MakeUp)
	}
	if cfg.Patience > 0 {
		variables["patience_ns"] = uint64(cfg.Patience)
	}
	for name, v := range variables {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, fmt.Errorf("load generator: %s: %w", name, err)
		}
	}
	var opts ebpf.CollectionOptions
	if cfg.UnderWay != nil {
		opts.MapReplacements = map[string]*ebpf.Map{"under_way": cfg.UnderWay}
	}
	l := &Live{size: size, frags: first.frags}
	if err := spec.LoadAndAssign(&l.objs, &opts); err != nil {
		return nil, fmt.Errorf("load generator: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.keeps.Close(), l.objs.Close())
		}
	}()
	if l.keeps, err = dispatch(host.NS, l.objs.Generate); err != nil {
		return nil, err
	}
	for i := range cfg.Flows {
		fr, _, err := buildFrame(&cfg.Flows[i], cfg.Size)
		if err != nil {
			return nil, err
		}
		if fr.hdrLen != first.hdrLen {
			return nil, errors.New("start generator: flows of one generator have headers of one length")
		}
		t := bpf.GenTemplate{IpSum: fr.ipSum, Flow: uint16(cfg.Flows[i].ID)}
		// The probe behind the headers is written by the program.
		copy(t.Hdr[:], fr.bytes[:fr.hdrLen])
		if probeLen == datagram.MinSize && size >= datagram.StampedSize {
			// Without a stamp the header's flags differ, and so does the sum.
			fixChecksum(t.Hdr[:fr.hdrLen])
		}
		if err := l.objs.Templates.Put(uint32(i), &t); err != nil {
			return nil, fmt.Errorf("write template: %w", err)
		}
	}
	if err := l.SetSchedule(cfg.Schedule, len(cfg.Flows)); err != nil {
		return nil, err
	}
	batch := cmp.Or(cfg.Batch, 64)
	p := idle
	if cfg.Eager {
		p = normal
	}
	l.thread, err = startThread(host.NS, cfg.Core, p, func() error { return l.run(first.bytes, batch) })
	if err != nil {
		return nil, err
	}
	l.stopping, l.ended = make(chan struct{}), make(chan struct{})
	go l.letGracePeriodsEnd()
	return l, nil
}

// mix says by how much datagrams are made smaller, and where the outer header is.
func mix(variables map[string]any, cfg *LiveConfig, size int, first *frame) error {
	var cut [8]uint16
	if first.frags > 1 || cfg.Flows[0].Src.Is6() || len(cfg.Mixed) >= len(cut) {
		return fmt.Errorf("start generator: datagrams of %d mixed sizes: they have to fit into a frame of IPv4, and be %d at most", len(cfg.Mixed)+1, len(cut))
	}
	for i, s := range cfg.Mixed {
		if s > size || s < datagram.StampedSize || (size-s)%2 != 0 {
			return fmt.Errorf("start generator: datagrams of %d bytes among those of %d", s, size)
		}
		cut[i+1] = uint16(size - s)
	}
	variables["cuts"], variables["cut"] = uint32(len(cfg.Mixed)+1), cut
	if cfg.Flows[0].Outer != nil {
		variables["outer_ip"] = uint32(ethLen)
	}
	return nil
}

// fixChecksum accounts for the flag that says that a stamp is there.
func fixChecksum(hdr []byte) {
	at := len(hdr) - 2
	with, without := datagram.Flags(true), datagram.Flags(false)
	sum := uint64(^binary.BigEndian.Uint16(hdr[at:])) + uint64(^binary.BigEndian.Uint16(with[:])) + uint64(binary.BigEndian.Uint16(without[:]))
	binary.BigEndian.PutUint16(hdr[at:], udpChecksum(sum))
}

// run sends until it is told to stop. The program is run by one long call: a
// call costs milliseconds to begin and to end.
func (l *Live) run(data []byte, batch int) error {
	attr := &struct {
		progFD, retval, dataSizeIn, dataSizeOut uint32
		dataIn, dataOut                         unsafe.Pointer
		repeat, duration                        uint32
		ctxSizeIn, ctxSizeOut                   uint32
		ctxIn, ctxOut                           unsafe.Pointer
		flags, cpu, batchSize, _                uint32
	}{
		progFD: uint32(l.objs.Generate.FD()), dataSizeIn: uint32(len(data)), dataIn: unsafe.Pointer(unsafe.SliceData(data)),
		repeat: math.MaxInt32, flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES, batchSize: uint32(batch),
	}
	for !l.stop.Load() {
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr))
		runtime.KeepAlive(data)
		runtime.KeepAlive(attr)
		switch errno {
		case 0, unix.EINTR, unix.EAGAIN:
		default:
			return fmt.Errorf("run generator: %w", errno)
		}
	}
	return nil
}

// graceLimit is by when a grace period of RCU has ended where the generator lets it: within 120 ms
// on the kernels that ask their system calls to make way.
const graceLimit = 200 * time.Millisecond

// membarrierGlobal, of linux/membarrier.h, waits for a grace period.
const membarrierGlobal = 1

// letGracePeriodsEnd has the generator's call begin anew while a grace period takes too long. A
// call is one read-side section until the kernel asks it to make way (bpf_test_timer_continue);
// kernels with full or lazy preemption do not ask: they take its core away, section and all.
func (l *Live) letGracePeriodsEnd() {
	defer close(l.ended)
	tick := time.NewTicker(graceLimit)
	defer tick.Stop()
	for {
		select {
		case <-l.stopping:
			return
		case <-tick.C:
		}
		over := make(chan unix.Errno, 1)
		go func() {
			_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
			over <- errno
		}()
		for waiting := true; waiting; {
			select {
			case errno := <-over:
				if errno != 0 {
					return // a kernel with cores without a tick does not tell
				}
				waiting = false
			case <-tick.C:
				_ = unix.Tgkill(unix.Getpid(), l.thread.tid, unix.SIGURG) // it has ended, or ends
			}
		}
	}
}

// SetSchedule changes the flows' shares while the generator runs.
func (l *Live) SetSchedule(schedule []uint16, flows int) error {
	n := l.objs.Schedule.MaxEntries()
	keys, values := make([]uint32, n), make([]uint16, n)
	for i := range keys {
		keys[i] = uint32(i)
		if len(schedule) > 0 {
			values[i] = schedule[i%len(schedule)]
		} else {
			values[i] = uint16(i % flows)
		}
	}
	if _, err := l.objs.Schedule.BatchUpdate(keys, values, nil); err != nil {
		return fmt.Errorf("write schedule: %w", err)
	}
	return nil
}

// Size is the UDP payload that is really sent.
func (l *Live) Size() int { return l.size }

// Frags is the number of frames of one datagram.
func (l *Live) Frags() int { return l.frags }

// Sent are a generator's counters since its start.
type Sent struct {
	Frames    uint64
	Datagrams uint64
	Waited    time.Duration // for its pace or its window
}

// Sent reads the counters.
func (l *Live) Sent() (Sent, error) {
	var s Sent
	var waited uint64
	err := errors.Join(l.objs.Frames.Get(&s.Frames), l.objs.Datagrams.Get(&s.Datagrams), l.objs.WaitedNs.Get(&waited))
	s.Waited = time.Duration(waited)
	if err != nil {
		return s, fmt.Errorf("read generator's counters: %w", err)
	}
	return s, nil
}

// Stop ends the generator and returns what it sent in all.
func (l *Live) Stop() (Sent, error) {
	l.stop.Store(true)
	err := l.thread.interrupt()
	close(l.stopping)
	<-l.ended
	s, serr := l.Sent()
	return s, errors.Join(err, serr, l.keeps.Close(), l.objs.Close())
}
