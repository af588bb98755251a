// SPDX-License-Identifier: Apache-2.0

package nics

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
)

// Wire is a namespace with a bridge, whose ports are taps, and the far end of the overlay on it.
type Wire struct {
	ns *netns.Handle
	// Taps are descriptors for the emulator, one for each queue.
	Taps []*os.File

	tags     []link.Link
	stream   *Sender
	receiver *Receiver
	listener net.Listener
	served   chan error
	load     []*Sender
}

// Port is what a NIC of the machine is connected to.
type Port struct {
	Queues int
	// Offloads: the NIC takes frames whose checksums are unfinished, and larger ones than the wire
	// has. A real wire has none.
	Offloads bool
	// VLAN: frames have a tag on the wire.
	VLAN bool
}

// NewWire builds it for the NICs of one machine.
func NewWire(mtu int, ports ...Port) (_ *Wire, err error) {
	w := &Wire{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if w.ns, err = netns.New(); err != nil {
		return nil, err
	}
	err = w.ns.Do(func() error {
		err := Batch(
			"link set lo up",
			fmt.Sprintf("link add wire address %s mtu %d type bridge stp_state 0 mcast_snooping 0", FarMAC, mtu),
			"link set wire up",
			fmt.Sprintf("addr add %s/24 dev wire", FarWire),
			fmt.Sprintf("neigh replace %s lladdr %s dev wire nud permanent", NearWire, NearMAC),
			fmt.Sprintf("link add tun0 address %s mtu %d type vxlan id %d dstport %d local %s remote %s dev wire nolearning",
				FarPodMAC, mtu-Encapsulated, VNI, TunnelPort, FarWire, NearWire),
			"link set tun0 up",
			fmt.Sprintf("addr add %s/24 dev tun0", FarPod),
			fmt.Sprintf("neigh replace %s lladdr %s dev tun0 nud permanent", NearPod, NearPodMAC))
		if err != nil {
			return err
		}
		for i, p := range ports {
			name := fmt.Sprintf("tap%d", i)
			for range p.Queues {
				f, err := openTap(name, p)
				if err != nil {
					return fmt.Errorf("make %s: %w", name, err)
				}
				w.Taps = append(w.Taps, f)
			}
			if p.VLAN {
				if err := w.tag(name); err != nil {
					return fmt.Errorf("tag frames of %s: %w", name, err)
				}
			}
			if err := Batch(fmt.Sprintf("link set %s mtu %d master wire up", name, mtu)); err != nil {
				return err
			}
		}
		return w.open()
	})
	return w, err
}

// open has the far end send its stream, and answer.
func (w *Wire) open() (err error) {
	if w.receiver, err = Receive(StreamPort); err != nil {
		return err
	}
	if w.stream, err = Send(NearPod, Load{Flows: 1, Burst: 1, Size: 64, Every: PaceIn, Port: StreamPort}); err != nil {
		return err
	}
	if w.listener, err = net.Listen("tcp4", netip.AddrPortFrom(FarWire, ControlPort).String()); err != nil {
		return err
	}
	w.served = make(chan error, 1)
	go func() { w.served <- w.serve() }()
	return nil
}

// serve answers one machine.
func (w *Wire) serve() error {
	c, err := w.listener.Accept()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	for {
		var a Ask
		if err := in.Decode(&a); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
		var said Answer
		if err := w.change(a); err != nil {
			said.Err = err.Error()
		}
		said.Stream = w.receiver.Cut()
		if err := out.Encode(said); err != nil {
			return err
		}
	}
}

func (w *Wire) change(a Ask) (err error) {
	if a.Load == nil {
		return nil
	}
	for _, s := range w.load {
		err = errors.Join(err, s.Close())
	}
	w.load = nil
	return errors.Join(err, w.ns.Do(func() error {
		for _, l := range a.Load {
			s, err := Send(NearPod, l)
			if err != nil {
				return err
			}
			w.load = append(w.load, s)
		}
		return nil
	}))
}

// Close takes all of it away; the machine has ended.
func (w *Wire) Close() error {
	var errs []error
	for _, f := range w.Taps {
		errs = append(errs, f.Close())
	}
	if w.listener != nil {
		errs = append(errs, w.listener.Close(), <-w.served)
	}
	for _, s := range append(w.load, w.stream) {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if w.receiver != nil {
		errs = append(errs, w.receiver.Close())
	}
	for _, l := range w.tags {
		errs = append(errs, l.Close())
	}
	if w.ns != nil {
		errs = append(errs, w.ns.Close())
	}
	return errors.Join(errs...)
}

// tag has frames get a tag on their way to the machine, and lose it on their way back: the kernel
// here may have no VLAN devices.
func (w *Wire) tag(name string) error {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	const next = -1 // TCX_NEXT
	for at, insns := range map[ebpf.AttachType]asm.Instructions{
		ebpf.AttachTCXEgress: {
			asm.LoadImm(asm.R2, int64(bits.ReverseBytes16(unix.ETH_P_8021Q)), asm.DWord),
			asm.Mov.Imm(asm.R3, VLANID),
			asm.FnSkbVlanPush.Call(),
			asm.Mov.Imm(asm.R0, next),
			asm.Return(),
		},
		ebpf.AttachTCXIngress: {
			asm.FnSkbVlanPop.Call(),
			asm.Mov.Imm(asm.R0, next),
			asm.Return(),
		},
	} {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: insns})
		if err != nil {
			return err
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: prog, Attach: at})
		if err := errors.Join(err, prog.Close()); err != nil {
			return err
		}
		w.tags = append(w.tags, l)
	}
	return nil
}

// Batch gives ip its commands, in the calling thread's namespace.
func Batch(lines ...string) error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %w: %s", err, out)
	}
	return nil
}

// openTap opens a queue of a tap, which is there as long as one is open.
func openTap(name string, p Port) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if p.Queues > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	if p.Offloads {
		flags |= unix.IFF_VNET_HDR
	}
	request := struct {
		name  [unix.IFNAMSIZ]byte
		flags uint16
		_     [22]byte // the rest of struct ifreq
	}{flags: flags}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return nil, errors.Join(errno, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}
