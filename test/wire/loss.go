// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/overlane/overlane/internal/netns"
)

// Loss drops packets inside of the receive path.
type Loss struct {
	objs wireObjects
	link link.Link
}

// DropEvery drops each nth packet that a device receives, behind programs that
// are on its tcx ingress hook already.
func DropEvery(ns *netns.Handle, dev string, n int) (*Loss, error) {
	return DropBursts(ns, dev, n, 1)
}

// DropBursts is DropEvery, of n packets the last few in a row.
func DropBursts(ns *netns.Handle, dev string, n, burst int) (*Loss, error) {
	spec, err := loadWire()
	if err != nil {
		return nil, fmt.Errorf("load loss: %w", err)
	}
	if err := errors.Join(spec.Variables["drop_every"].Set(uint32(n)), spec.Variables["drop_burst"].Set(uint32(burst))); err != nil {
		return nil, fmt.Errorf("load loss: %w", err)
	}
	l := &Loss{}
	if err := spec.LoadAndAssign(&l.objs, nil); err != nil {
		return nil, fmt.Errorf("load loss: %w", err)
	}
	err = ns.Do(func() error {
		ifi, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		l.link, err = link.AttachTCX(link.TCXOptions{Interface: ifi.Index, Program: l.objs.Drop, Attach: ebpf.AttachTCXIngress, Anchor: link.Tail()})
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("drop packets of %s: %w", dev, err), l.objs.Close())
	}
	return l, nil
}

// Dropped is the number of packets so far.
func (l *Loss) Dropped() (n uint64, err error) {
	if err := l.objs.Dropped.Get(&n); err != nil {
		return 0, fmt.Errorf("read loss: %w", err)
	}
	return n, nil
}

// End ends the loss, and returns the number of packets of all of it.
func (l *Loss) End() (uint64, error) {
	detached := l.link.Close()
	n, err := l.Dropped()
	return n, errors.Join(detached, err, l.objs.Close())
}

// Close ends the loss.
func (l *Loss) Close() error { return errors.Join(l.link.Close(), l.objs.Close()) }
