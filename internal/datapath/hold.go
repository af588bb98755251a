// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/link"
)

// Holder holds copies of descriptors, so that what they stand for outlives this process for as
// long as the holder wants it to.
type Holder interface {
	// Hold holds a copy under a name, which others may have too, until letGo has returned.
	Hold(name string, fd int) (letGo func() error, err error)
}

// By these names Adopt finds what it needs.
const (
	heldPolicies = "policies"
	heldCounters = "counters"
	heldCores    = "cores"
	heldPrios    = "priority"
	heldLaneLeft = "lane"
	heldMergings = "mergings"
	// Links: of XDP, of other hooks, of what traces polls, and of what else is traced.
	heldXDP   = "xdp"
	heldTCX   = "tcx"
	heldPolls = "polls"
	heldTrace = "trace"
)

// HeldBy has a holder hold what is attached, and what flows need to drain without this process:
// see Adopt. It comes before anything is attached to a device.
func (d *Datapath) HeldBy(h Holder) error {
	for name, fd := range map[string]int{
		heldPolicies: d.stages.OlPolicies.FD(), heldCounters: d.stages.OlCounters.FD(), heldCores: d.stages.OlCpus.FD(),
		heldPrios: d.stages.OlPrios.FD(), heldLaneLeft: d.trace.OlLaneLeft.FD(), heldMergings: d.stages.OlMergings.FD(),
	} {
		if _, err := h.Hold(name, fd); err != nil {
			return fmt.Errorf("have %s held: %w", name, err)
		}
	}
	d.holder = h
	var err error
	if d.polls, err = d.hold(heldPolls, d.polls); err != nil {
		return err
	}
	for i, l := range d.tracer {
		if d.tracer[i], err = d.hold(heldTrace, l); err != nil {
			return err
		}
	}
	return nil
}

// hold has a link held, until it is closed. On an error it is closed already.
func (d *Datapath) hold(name string, l link.Link) (link.Link, error) {
	if d.holder == nil {
		return l, nil
	}
	kernel := l
	if x, ok := l.(xdpLink); ok {
		kernel = x.Link
	}
	has, ok := kernel.(interface{ FD() int })
	if !ok {
		return l, errors.Join(fmt.Errorf("have a link held: %T has no descriptor", kernel), l.Close())
	}
	letGo, err := d.holder.Hold(name, has.FD())
	if err != nil {
		return l, errors.Join(fmt.Errorf("have a link held: %w", err), l.Close())
	}
	return heldLink{l, letGo}, nil
}

// heldLink is one that a Holder holds, too.
type heldLink struct {
	link.Link
	letGo func() error
}

// Close takes the program off.
func (l heldLink) Close() error { return errors.Join(l.letGo(), l.Link.Close()) }
