// SPDX-License-Identifier: Apache-2.0

package order

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/test/e2e/rig"
)

// choices tells which of their two lanes of a stage flows are on, from the kernel side's own maps, read
// a hundred times a second: a counter would cost each packet.
type choices struct {
	owners, slots *ebpf.Map
	stop          chan struct{}
	ended         chan error
	nr            [stages]atomic.Uint32 // lanes
	// hopped are sightings of a flow on a lane of a stage with several lanes, and second those of them in
	// which that was its second choice.
	hopped, second uint64
	// flows are slots that were seen on a second choice, and polled the cores that were seen to choose lanes
	// for each stage.
	flows  map[uint32]bool
	polled [stages]map[int]bool
}

// What bpf/abi.h says of these maps: three stages, a slot's lane behind its 32 bits of seq, and the cores
// that have a slot, plus one, in 16 bits for each stage.
const (
	stages  = 3
	inSlot  = 4
	local   = 0xff
	express = 0xfe
)

var stageNames = [stages]string{"nic", "tunnel", "pod"}

// watchChoices looks at the flows of a daemon until it is closed.
func watchChoices(pid int) (*choices, error) {
	c := &choices{flows: map[uint32]bool{}, stop: make(chan struct{}), ended: make(chan error, 1)}
	for name, m := range map[string]**ebpf.Map{"ol_owners": &c.owners, "ol_slots": &c.slots} {
		var err error
		if *m, err = rig.MapOf(pid, name); err != nil {
			return nil, fmt.Errorf("watch choices: %w", err)
		}
	}
	go func() {
		defer close(c.ended)
		for {
			select {
			case <-c.stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			if err := c.look(); err != nil {
				c.ended <- err
				return
			}
		}
	}()
	return c, nil
}

// among says which lanes there are.
func (c *choices) among(st control.Status) {
	for s, name := range stageNames {
		n := uint32(0)
		for _, l := range st.Lanes {
			if l.Stage == name {
				n++
			}
		}
		c.nr[s].Store(n)
	}
}

// look reads where flows are now.
func (c *choices) look() error {
	keys, owners := make([]uint32, c.owners.MaxEntries()), make([][stages + 1]uint16, c.owners.MaxEntries())
	var at ebpf.MapBatchCursor
	if n, err := c.owners.BatchLookup(&at, keys, owners, nil); n != len(keys) {
		return fmt.Errorf("read owners of slots: %d of %d: %w", n, len(keys), err)
	}
	value := make([]byte, c.slots.ValueSize())
	for slot := range c.owners.MaxEntries() {
		for s := range uint32(stages) {
			owner := uint32(owners[slot][s])
			if owner == 0 {
				continue
			}
			if c.polled[s] == nil {
				c.polled[s] = map[int]bool{}
			}
			c.polled[s][int(owner-1)] = true
			nr := c.nr[s].Load()
			if nr < 2 {
				continue
			}
			if err := c.slots.Lookup(((owner-1)*stages+s)*c.owners.MaxEntries()+slot, &value); err != nil {
				return fmt.Errorf("read slot %d: %w", slot, err)
			}
			lane := uint32(value[inSlot])
			if lane == local || lane == express {
				continue
			}
			first, second := candidates(slot, s, nr)
			switch lane {
			case second:
				c.second++
				c.flows[slot] = true
			case first:
			default:
				continue // of lanes that are no more
			}
			c.hopped++
		}
	}
	return nil
}

// candidates are the lanes that a slot may choose from, as bpf/pipeline.h has it.
func candidates(slot, stage, nr uint32) (first, second uint32) {
	h := (slot+1)*0x9e3779b1 + stage*0x85ebca6b
	h = (h ^ h>>16) * 0x7feb352d
	h = (h ^ h>>15) * 0x846ca68b
	h ^= h >> 16
	first = h % nr
	return first, (first + 1 + h>>16%(nr-1)) % nr
}

// end ends that, and tells what was seen.
func (c *choices) end(r *row) error {
	close(c.stop)
	err := <-c.ended
	// The first stage that hops is chosen for where the NIC is polled.
	for _, cores := range c.polled {
		if len(cores) > 0 {
			r.Polled = config.CPUList(slices.Sorted(maps.Keys(cores))).String()
			break
		}
	}
	r.Seen, r.Seconds = c.hopped, len(c.flows)
	r.Second = float64(c.second) / float64(max(c.hopped, 1))
	return errors.Join(err, c.owners.Close(), c.slots.Close())
}
