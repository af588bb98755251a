// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/polled"
)

// laneQueue is the number of frames that a lane of the nic stage holds: at a
// million packets per second some milliseconds, and less than a core's L2
// cache holds of headers.
const laneQueue = 2048

// Verdicts of linux/bpf.h.
const (
	xdpDrop = 1
	xdpPass = 2
)

// cpumapValue is struct bpf_cpumap_val of linux/bpf.h.
type cpumapValue struct {
	QSize  uint32
	ProgFD int32
}

// StartLanes makes the threads of the nic stage's lanes on those of the given
// cores that have none yet. They must be there before a program redirects to
// them; they go with Close.
func (d *Datapath) StartLanes(cores []int) error {
	if err := d.watchRedirects(); err != nil {
		return err
	}
	if err := d.attachOnce(&d.lanesWatched, d.trace.OlLaneTaken); err != nil {
		return err
	}
	return d.startLanes(cores, bulkLane)
}

// laneThread is a cpumap thread: one of a core's lanes.
type laneThread struct{ core, class int }

// Whose lanes there are. The nic stage of the pipeline uses those of bulk.
const (
	bulkLane    = int(priorityOlClassOL_CLASS_BULK)
	latencyLane = int(priorityOlClassOL_CLASS_LATENCY)
)

func (d *Datapath) laneMap(class int) *ebpf.Map {
	if class == latencyLane {
		return d.stages.OlLatencyThreads
	}
	return d.stages.OlLaneThreads
}

func (d *Datapath) startLanes(cores []int, class int) error {
	if err := d.watchRedirects(); err != nil {
		return err
	}
	for _, core := range cores {
		if d.laneThreads[laneThread{core, class}] {
			continue // another one in its place would overtake it
		}
		if err := d.laneMap(class).Put(uint32(core), cpumapValue{QSize: laneQueue}); err != nil {
			return fmt.Errorf("start lane on core %d: %w", core, err)
		}
		if err := d.findLane(core, class, xdpPass); err != nil {
			return err
		}
		d.laneThreads[laneThread{core, class}] = true
	}
	return nil
}

// EndLanes ends the threads on the given cores. Nothing may redirect to them, and
// nothing be left in them.
func (d *Datapath) EndLanes(gone func(core int) bool) error {
	for l := range d.laneThreads {
		if !gone(l.core) {
			continue
		}
		if err := d.laneMap(l.class).Delete(uint32(l.core)); err != nil {
			return fmt.Errorf("end lane on core %d: %w", l.core, err)
		}
		delete(d.laneThreads, l)
		if err := d.findLane(l.core, l.class, xdpDrop); err != nil {
			return err
		}
	}
	return nil
}

// StrayedLanes are the cores whose lane's thread may run elsewhere, since the core was on
// its way offline, whether it got there or not.
func (d *Datapath) StrayedLanes() (cores []int, err error) {
	all, err := d.leaves()
	for core, leave := range all {
		if d.laneThreads[laneThread{core, bulkLane}] && leave.Strayed != 0 && leave.Leaving == 0 {
			cores = append(cores, core)
		}
	}
	return cores, err
}

// Returns are how often each core was on its way offline, and is online again.
func (d *Datapath) Returns() ([]uint32, error) {
	all, err := d.leaves()
	returns := make([]uint32, len(all))
	for core, leave := range all {
		returns[core] = leave.Returns
	}
	return returns, err
}

// leaves are the cores' ways offline.
func (d *Datapath) leaves() ([]stagesOlLeave, error) {
	all := make([]stagesOlLeave, d.cpus)
	for core := range all {
		if err := d.stages.OlLeaves.Lookup(uint32(core), &all[core]); err != nil {
			return nil, fmt.Errorf("read whether core %d leaves: %w", core, err)
		}
	}
	return all, nil
}

// findLane tells the programs where the kernel keeps a core's lane for a class. They
// shall find one (xdpPass) or none (xdpDrop).
func (d *Datapath) findLane(core, class int, expected uint32) error {
	frame := make([]byte, 14) // the least that a test run takes
	binary.NativeEndian.PutUint32(frame, uint32(core))
	binary.NativeEndian.PutUint32(frame[4:], uint32(class))
	verdict, err := d.xdp.OlFindLane.Run(&ebpf.RunOptions{Data: frame})
	if err == nil && verdict != expected {
		err = errors.New("the kernel's cpumap is not as expected")
	}
	if err != nil {
		return fmt.Errorf("find lane on core %d: %w", core, err)
	}
	return nil
}

// watchRedirects counts the frames that are lost behind an XDP program: on their way to a lane or to a pod.
func (d *Datapath) watchRedirects() error {
	if err := d.needXDP(); err != nil || d.redirectsWatched {
		return err
	}
	for to, m := range map[*ebpf.Variable]*ebpf.Map{
		d.trace.OlLaneMapId: d.stages.OlLaneThreads, d.trace.OlLatencyMapId: d.stages.OlLatencyThreads, d.trace.OlPortsMapId: d.xdp.OlExpressPorts,
	} {
		info, err := m.Info()
		if err != nil {
			return fmt.Errorf("read %s: %w", m, err)
		}
		id, ok := info.ID()
		if !ok {
			return fmt.Errorf("read %s: the kernel tells no map ID", m)
		}
		if err := to.Set(int32(id)); err != nil {
			return fmt.Errorf("write map ID: %w", err)
		}
	}
	return d.attachOnce(&d.redirectsWatched, d.trace.OlLaneEnqueue, d.trace.OlLaneStarved, d.trace.OlRedirectRefused)
}

// attachOnce attaches programs to their tracepoints until Close, all or none, where that is not done yet.
func (d *Datapath) attachOnce(done *bool, progs ...*ebpf.Program) error {
	if *done {
		return nil
	}
	var made []link.Link
	for _, prog := range progs {
		l, err := d.attachTracing(heldTrace, prog)
		if err != nil {
			for _, l := range made {
				err = errors.Join(err, l.Close())
			}
			return err
		}
		made = append(made, l)
	}
	d.tracer, *done = append(d.tracer, made...), true
	return nil
}

// Headless are the NICs, by ifindex, whose drivers put the headers of frames into another buffer than the first, as
// XDP programs have seen. What they have counted is forgotten.
func (d *Datapath) Headless() ([]int, error) {
	return told(d.stages.OlHeadless, uint32(stagesOlLimitOL_HEADLESS_ENOUGH))
}

// Unfinished are the NICs, by ifindex, by which frames came whose senders have left the checksum to the receiver. What
// they have counted is forgotten.
func (d *Datapath) Unfinished() ([]int, error) { return told(d.stages.OlUnfinished, 1) }

// told are the NICs that programs have told of in a map, by as many frames as are enough.
func told(m *ebpf.Map, enough uint32) (nics []int, err error) {
	var nic, frames uint32
	list := m.Iterate()
	for list.Next(&nic, &frames) {
		if frames >= enough {
			nics = append(nics, int(nic))
		}
	}
	err = list.Err()
	for _, nic := range nics {
		err = errors.Join(err, m.Delete(uint32(nic)))
	}
	if err != nil {
		return nil, fmt.Errorf("read what programs have seen of NICs: %w", err)
	}
	return nics, nil
}

// ErrForeignXDP says that what others have on the device stands against a program of ours.
var ErrForeignXDP = errors.New("another XDP program is attached")

// Refused is the kernel's refusal of an XDP program on a device.
type Refused struct {
	Errno unix.Errno
	// Reason is what the driver or the kernel says beside the number, if it says anything.
	Reason string
}

func (e *Refused) Error() string {
	name := unix.ErrnoName(e.Errno)
	if e.Errno == unix.EOPNOTSUPP {
		name = "EOPNOTSUPP" // it has two
	}
	said := fmt.Sprintf("the kernel refuses it: %s (%s)", e.Errno.Error(), name)
	if e.Reason != "" {
		said += ": " + e.Reason
	}
	return said
}

func (e *Refused) Unwrap() error { return e.Errno }

// AttachXDP attaches the pipeline's XDP program on an underlay, in the driver.
func (d *Datapath) AttachXDP(dev Device) (io.Closer, error) {
	if err := d.needXDP(); err != nil {
		return nil, err
	}
	// No program has seen which paths flows have taken since it was last there.
	d.policy.ExpressEpoch++
	if err := d.pathsChanged(); err != nil {
		return nil, err
	}
	return d.attachXDP(dev, d.xdp.OlUnderlayXdp)
}

// attachXDP attaches a program on a device, in the driver: generic XDP would cost more
// than it gains and is never used. The error is ENODEV if the device is gone, or else Refused.
func (d *Datapath) attachXDP(dev Device, prog *ebpf.Program) (link.Link, error) {
	var l link.Link
	err := dev.Netns.Do(func() error {
		core := polled.Core()
		why, stop := d.refusals()
		defer stop()
		err := polled.On(core, func() (err error) {
			l, err = link.AttachXDP(link.XDPOptions{
				Program:   prog,
				Interface: dev.Ifindex,
				Flags:     link.XDPDriverMode,
			})
			return err
		})
		var no unix.Errno
		if err == nil || !errors.As(err, &no) {
			return err
		}
		// The kernel says EINVAL of a device that is not there, too.
		if _, gone := net.InterfaceByIndex(dev.Ifindex); gone != nil {
			return errors.Join(unix.ENODEV, err)
		}
		return &Refused{Errno: no, Reason: why()}
	})
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
		err = errors.Join(ErrForeignXDP, err)
	}
	if err != nil {
		return nil, fmt.Errorf("attach XDP program to device %d: %w", dev.Ifindex, err)
	}
	return d.hold(heldXDP, xdpLink{l})
}

// refusals has what the kernel says for a refused program noted until stop: bpf(2) returns a number
// only. Linux has the tracepoint since 6.6; without, it says nothing.
func (d *Datapath) refusals() (why func() string, stop func()) {
	var said [96]byte
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "bpf_xdp_link_attach_failed", Program: d.trace.OlXdpRefused})
	if err != nil {
		return func() string { return "" }, func() {}
	}
	_ = d.trace.OlXdpRefusal.Set(said) // else the last one's reason would be said again
	return func() string {
		if err := d.trace.OlXdpRefusal.Get(&said); err != nil {
			return ""
		}
		return unix.ByteSliceToString(said[:])
	}, func() { _ = l.Close() }
}

// xdpLink is one of XDP, which goes as it came: between two polls.
type xdpLink struct{ link.Link }

// Close takes the program off.
func (l xdpLink) Close() error { return polled.On(polled.Core(), l.Link.Close) }

// laneLeft is how many frames of a core's lane are not known to be handled. It asks the kernel
// itself: the library loads a program of its own first, to see whether it can, and a guardian may
// load none.
func (d *Datapath) laneLeft(core int) (uint32, error) {
	ctx := uint64(core)
	attr := testRun{ProgFD: uint32(d.trace.OlLaneLeft.FD()), CtxSizeIn: uint32(unsafe.Sizeof(ctx)), CtxIn: unsafe.Pointer(&ctx)}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return 0, fmt.Errorf("look into the lane on core %d: %w", core, errno)
	}
	return attr.Retval, nil
}

// testRun is what union bpf_attr of linux/bpf.h has for BPF_PROG_TEST_RUN, on machines of 64 bits. What it
// points to has to be a pointer to the runtime, too, which moves stacks.
type testRun struct {
	ProgFD, Retval           uint32
	DataSizeIn, DataSizeOut  uint32
	DataIn, DataOut          uint64
	Repeat, Duration         uint32
	CtxSizeIn, CtxSizeOut    uint32
	CtxIn, CtxOut            unsafe.Pointer
	Flags, CPU, BatchSize, _ uint32
}
