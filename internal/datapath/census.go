// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Census counts what each flow brings that comes out of tunnels, from its loading on.
type Census struct{ objs censusObjects }

// LoadCensus puts the counting program into the kernel.
func (d *Datapath) LoadCensus() (*Census, error) {
	c := &Census{}
	if err := d.loadObject("the program that counts flows", loadCensus, &c.objs, forAWhile); err != nil {
		return nil, err
	}
	return c, nil
}

// Attach attaches the program on a tunnel's ingress, in front of the others. Closing what it returns
// takes it off again.
func (c *Census) Attach(dev Device) (io.Closer, error) {
	return attachTCXAt(dev, ebpf.AttachTCXIngress, link.Head(), c.objs.OlTunnelCensus)
}

// FlowBrought is what a flow brought, or the rest of the flows together.
type FlowBrought struct {
	Packets, Bytes uint64
	Datagrams      uint64 // of the packets, those of UDP
}

// FlowCounts are a census that is taken until it ends, of all tunnels.
type FlowCounts interface {
	// Flows are what each flow brought, and what the rest did that had no place.
	Flows() (flows []FlowBrought, rest FlowBrought, err error)
	End() error
}

// Flows reads what each flow brought, and what the rest did that had no place.
func (c *Census) Flows() (flows []FlowBrought, rest FlowBrought, err error) {
	var key uint32
	var cores []censusOlCensusFlow
	it := c.objs.OlCensusFlows.Iterate()
	for it.Next(&key, &cores) {
		for _, f := range cores {
			switch n := (FlowBrought{uint64(f.Packets), uint64(f.Bytes), uint64(f.Datagrams)}); {
			case n.Packets == 0:
			case f.Flow == 0:
				rest.Packets, rest.Bytes, rest.Datagrams = rest.Packets+n.Packets, rest.Bytes+n.Bytes, rest.Datagrams+n.Datagrams
			default:
				flows = append(flows, n)
			}
		}
	}
	if err := it.Err(); err != nil {
		return nil, rest, fmt.Errorf("read flows: %w", err)
	}
	return flows, rest, nil
}

// Close unloads the program. Attachments are closed one by one before.
func (c *Census) Close() error { return c.objs.Close() }
