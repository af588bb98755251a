// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Aggregation counts what comes out of tunnels, and what of that could be joined.
type Aggregation struct{ objs aggregateObjects }

// LoadAggregation puts the counting program into the kernel.
func (d *Datapath) LoadAggregation() (*Aggregation, error) {
	a := &Aggregation{}
	if err := d.loadObject("the program that counts what is aggregated", loadAggregate, &a.objs, forAWhile); err != nil {
		return nil, err
	}
	return a, nil
}

// Attach attaches the program on a tunnel's ingress, in front of the others: what one of them hands
// on, none behind it sees. Closing what it returns takes it off again.
func (a *Aggregation) Attach(dev Device) (io.Closer, error) {
	return attachTCXAt(dev, ebpf.AttachTCXIngress, link.Head(), a.objs.OlTunnelCount)
}

// AttachNIC attaches the program that tells flows which the GRO of a NIC would reorder, likewise.
func (a *Aggregation) AttachNIC(dev Device) (io.Closer, error) {
	return attachTCXAt(dev, ebpf.AttachTCXIngress, link.Head(), a.objs.OlNicOrder)
}

// Fits says how long the longest frame in a tunnel is that a packet of the NICs can hold: a longer one came in outer
// fragments.
func (a *Aggregation) Fits(frame int) error {
	if err := a.objs.OlWhole.Set(uint32(frame)); err != nil {
		return fmt.Errorf("tell how long frames are that come whole: %w", err)
	}
	return nil
}

// SetApart says whether GRO joins datagrams, which priority's lanes then tell apart. It is to be on
// for as long as any device has that. It returns whether that is new.
func (d *Datapath) SetApart(on bool) (changed bool, err error) {
	if !setFlag(&d.policy.Flags, stagesOlFlagOL_F_APART, on) {
		return false, nil
	}
	return true, d.writePolicy()
}

// AggregateCounters are totals over all tunnels.
type AggregateCounters struct {
	Packets   uint64 // that came out, as they were sent
	UDP       uint64 // datagrams of these, and first fragments of datagrams
	Datagrams uint64 // of these, in UDP super-packets
	Supers    uint64 // these
	Follows   uint64 // datagrams that were not joined to one before, and could have been
	Together  uint64 // of these, those that came in one poll with the one before, where polls are traced
	Mixed     uint64 // that GRO takes otherwise than one of their flow shortly before, and lets overtake it, or be overtaken
	// Port is one to which some of Follows were sent; it is no total.
	Port uint16
}

// Add sums counters.
func (c AggregateCounters) Add(o AggregateCounters) AggregateCounters {
	port := cmp.Or(o.Port, c.Port)
	c.Port, o.Port = 0, 0
	c = added(c, o)
	c.Port = port
	return c
}

// Sub is what has come since.
func (c AggregateCounters) Sub(o AggregateCounters) AggregateCounters {
	return AggregateCounters{c.Packets - o.Packets, c.UDP - o.UDP, c.Datagrams - o.Datagrams, c.Supers - o.Supers,
		c.Follows - o.Follows, c.Together - o.Together, c.Mixed - o.Mixed, c.Port}
}

// Counters reads the totals since the program was loaded.
func (a *Aggregation) Counters() (c AggregateCounters, err error) {
	const onTunnels, onNICs = 0, 1 // enum ol_place
	for _, place := range []uint32{onTunnels, onNICs} {
		var cores []aggregateOlAggregated
		if err := a.objs.OlAggregates.Lookup(place, &cores); err != nil {
			return c, fmt.Errorf("read what is aggregated: %w", err)
		}
		for _, n := range cores {
			if place == onNICs {
				c.Mixed += n.Mixed
				continue
			}
			c = c.Add(AggregateCounters{n.Packets, n.Udp, n.Datagrams, n.Supers, n.Follows, n.Together, n.Mixed, uint16(n.Port)})
		}
	}
	return c, nil
}

// Close unloads the program. Attachments are closed one by one before.
func (a *Aggregation) Close() error { return a.objs.Close() }
