// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
)

// ownMask is where a container sees its own receive mask.
const ownMask = "class/net/" + bed.PodDev + "/queues/rx-0/rps_cpus"

// A container's /sys is read-only, and so is the sysfs superblock of its network namespace. It is steered
// nevertheless, its view stays read-only, and all is as it was after a kill.
func TestContainersAreSteeredAndSeeNothingOfIt(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{Pods: 2})
	view := rig.Contain(t, b.Receiver().Pods[1])
	check(t, b)
	before := masks(t, b)

	stop, tried := make(chan struct{}), make(chan error)
	go func() { // what a container does that would write at any moment
		n := 0
		for {
			f, err := view.OpenFile(ownMask, os.O_WRONLY, 0)
			if err == nil {
				err = errors.Join(errors.New("the container could write its mask"), f.Close())
			} else if errors.Is(err, unix.EROFS) {
				err = nil
			}
			n++
			select {
			case <-stop:
				if n < 100 {
					err = errors.Join(err, fmt.Errorf("only %d tries", n))
				}
				tried <- err
				return
			default:
			}
			if err != nil {
				<-stop
				tried <- err
				return
			}
		}
	}()
	d, l := start(t, b)
	steered(t, d, b.Receiver().Pods[1], b.Receiver().Pods[0])
	if r := d.Verb("plan"); r.Code != 0 || strings.Contains(r.Out, "read-only") {
		t.Errorf("plan says %s", r)
	}
	l.GoesOn()
	d.Signal(unix.SIGKILL)
	d.GoneBoth()
	if now := masks(t, b); now != before {
		t.Errorf("masks are %s, were %s", now, before)
	}
	d.NothingLeft()
	close(stop)
	must(t, <-tried)
	overtaken(t, l.Stop(), 3)
}

// A pod whose settings cannot be written is left alone, plan says the same beforehand, and the others are steered.
func TestAPodThatCannotBeWrittenIsLeftAlone(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{Pods: 2})
	host := b.Receiver()
	rig.Contain(t, host.Pods[1])
	check(t, b)
	spec := rig.Spec{NS: host.NS, Config: forced, Before: withoutFspick}
	const why = "made the sysfs of its network namespace read-only"
	for _, verb := range []string{"plan", "doctor"} {
		if r := rig.Run(t, spec, verb); r.Code != 0 || strings.Count(r.Out, why) != 1 {
			t.Errorf("%s does not say that one pod cannot be written: %s", verb, r)
		}
	}
	d := rig.Start(t, spec)
	l := rig.StartLoad(t, b, 4)
	d.Acting()
	saysManual(t, d, host.Pods[1].HostEnd, why)
	if rig.Mask(t, host.Pods[0].NS, bed.PodDev) == "" {
		t.Error("the other pod has no mask")
	}
	onlyOneManual(t, d)
	l.GoesOn()
	ends(t, d)
	left(t, d, l.Stop())
}

// onlyOneManual fails the test if more is left alone than one device.
func onlyOneManual(t *testing.T, d *rig.Daemon) {
	t.Helper()
	n := 0
	for _, dev := range d.Status().Devices {
		if dev.State == control.Manual {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d devices are left alone: %+v", n, d.Status().Devices)
	}
}

// withoutFspick takes away the system call by which a superblock is made writable, as a service manager's
// filter or another kernel might.
func withoutFspick() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSPICK, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
}

// A pod's device that takes no program any more is no reason to leave out the others.
func TestAPodThatTakesNoProgramIsLeftAlone(t *testing.T) {
	b := lab(t, bed.Options{Pods: 2})
	host := b.Receiver()
	must(t, host.Overlay.Do(func() error {
		dev, err := netlink.LinkByName(host.Pods[1].HostEnd)
		if err != nil {
			return err
		}
		for {
			prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
				asm.Mov.Imm(asm.R0, -1), asm.Return(), // TCX_NEXT
			}})
			if err != nil {
				return err
			}
			defer prog.Close()
			l, err := link.AttachTCX(link.TCXOptions{Interface: dev.Attrs().Index, Program: prog, Attach: ebpf.AttachTCXEgress})
			if errors.Is(err, unix.ERANGE) {
				return nil // BPF_MPROG_MAX
			}
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
		}
	}))
	d, l := start(t, b)
	saysManual(t, d, host.Pods[1].HostEnd, "no program could be attached")
	if rig.Mask(t, host.Pods[0].NS, bed.PodDev) == "" || rig.Mask(t, host.Pods[1].NS, bed.PodDev) != "" {
		t.Errorf("masks are %s", masks(t, b))
	}
	onlyOneManual(t, d)
	l.GoesOn()
	ends(t, d)
	left(t, d, l.Stop())
}
