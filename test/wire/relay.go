// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/link"

	"github.com/overlane/overlane/internal/netns"
)

// Relay sends what two devices of a namespace receive on by the other, as bare frames: between
// hosts on one machine a packet else keeps what its sender's stack knows of it.
type Relay struct{ links []link.Link }

// StartRelay joins two devices, by their indices. The devices at their other ends must be polled
// by NAPI.
func StartRelay(ns *netns.Handle, a, b int) (*Relay, error) {
	r := &Relay{}
	for from, to := range map[int]int{a: b, b: a} {
		if err := r.add(ns, from, to); err != nil {
			return nil, errors.Join(fmt.Errorf("relay from device %d to %d: %w", from, to, err), r.Close())
		}
	}
	return r, nil
}

func (r *Relay) add(ns *netns.Handle, from, to int) error {
	spec, err := loadWire()
	if err != nil {
		return err
	}
	if err := spec.Variables["relay_to"].Set(uint32(to)); err != nil {
		return err
	}
	var objs wireObjects
	if err := spec.LoadAndAssign(&objs, nil); err != nil {
		return err
	}
	defer objs.Close() // the link keeps the program
	return ns.Do(func() error {
		l, err := link.AttachXDP(link.XDPOptions{Program: objs.Relay, Interface: from, Flags: link.XDPDriverMode})
		if err == nil {
			r.links = append(r.links, l)
		}
		return err
	})
}

// Close takes the devices apart.
func (r *Relay) Close() error {
	var errs []error
	for _, l := range r.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
