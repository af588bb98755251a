// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/overlane/overlane/internal/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dispatched keeps a program in the kernel's XDP dispatcher.
//
// A call that runs a program of type XDP puts it there, and takes it away when it ends, each time after a
// grace period (bpf_prog_change_xdp, net/bpf/test_run.c). The call of another generator holds that up: on
// kernels with full or lazy preemption several generators took turns, and sent as much as one. A program
// that is attached somewhere is there already.
type dispatched struct {
	ns   *netns.Handle
	dev  netlink.Link
	link link.Link
}

// devices counts those of this process, for their names.
var devices atomic.Uint32

// dispatch attaches the program to a device of its own, which is down. Where the kernel has no
// dummy devices, it does nothing.
func dispatch(ns *netns.Handle, prog *ebpf.Program) (*dispatched, error) {
	d := &dispatched{ns: ns, dev: &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{
		Name: fmt.Sprintf("gen%d.%d", os.Getpid(), devices.Add(1)%1000),
	}}}
	err := ns.Do(func() (err error) {
		if err = netlink.LinkAdd(d.dev); err != nil {
			return err
		}
		d.link, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: d.dev.Attrs().Index, Flags: link.XDPGenericMode})
		if err != nil {
			err = errors.Join(err, netlink.LinkDel(d.dev))
		}
		return err
	})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("attach generator to %s: %w", d.dev.Attrs().Name, err)
	}
	return d, nil
}

// Close takes the device away.
func (d *dispatched) Close() error {
	if d == nil {
		return nil
	}
	return errors.Join(d.link.Close(), d.ns.Do(func() error { return netlink.LinkDel(d.dev) }))
}
