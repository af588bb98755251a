// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/overlane/overlane/internal/netns"
)

// Merge is the loaded qdisc that puts split flows in order again. It outlives the process
// on devices that have it; what looks after it then is the time since its last Heartbeat.
type Merge struct {
	objs mergeObjects
	link link.Link
	kind string
}

// LoadMerge makes a kind of qdisc known to the kernel. limit is how long a packet waits
// at most for one that comes before it.
func (d *Datapath) LoadMerge(limit time.Duration) (*Merge, error) {
	spec, err := loadMerge()
	if err != nil {
		return nil, fmt.Errorf("read merge object: %w", err)
	}
	if err := d.prepare(spec); err != nil {
		return nil, err
	}
	if err := spec.Variables["ol_merge_limit_ns"].Set(uint64(limit)); err != nil {
		return nil, fmt.Errorf("set limit of the merge: %w", err)
	}
	if err := spec.Variables["ol_backlog_room"].Set(backlogRoom()); err != nil {
		return nil, fmt.Errorf("set room of backlogs: %w", err)
	}
	m := &Merge{kind: fmt.Sprintf("overlane%07x", rand.Uint32N(1<<28))}
	if err := nameQdisc(spec.Maps["ol_merge_ops"], m.kind); err != nil {
		return nil, err
	}
	err = d.aside(func() error {
		return spec.LoadAndAssign(&m.objs, &ebpf.CollectionOptions{MapReplacements: d.sharedMaps(spec)})
	})
	if err != nil {
		return nil, fmt.Errorf("load merge: %w", err)
	}
	if m.link, err = link.AttachStructOps(link.StructOpsOptions{Map: m.objs.OlMergeOps}); err != nil {
		return nil, errors.Join(fmt.Errorf("make qdisc %s known: %w", m.kind, err), m.Close())
	}
	return m, nil
}

// backlogRoom is how many packets a backlog has room for. The setting is the machine's, and only
// its first network namespace shows it: the daemon's own, mostly, or that of the first process. The
// kernel's variable has an address that is told only with CAP_SYSLOG. Where the setting
// cannot be read it is taken for what the kernel begins with.
func backlogRoom() uint32 {
	const usual = 1000
	room, err := readBacklog()
	if err == nil {
		return room
	}
	first, err := netns.OfPID(1)
	if err != nil {
		return usual
	}
	defer first.Close()
	err = first.Do(func() error {
		room, err = readBacklog()
		return err
	})
	if err != nil {
		return usual
	}
	return room
}

// readBacklog reads it as the calling thread's network namespace shows it.
func readBacklog() (uint32, error) {
	b, err := os.ReadFile("/proc/sys/net/core/netdev_max_backlog")
	if err != nil {
		return 0, err
	}
	room, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 31)
	return uint32(room), err
}

// nameQdisc gives the qdisc a name of its own: the kernel's names are the machine's.
func nameQdisc(ops *ebpf.MapSpec, kind string) error {
	const size = 16 // IFNAMSIZ
	if ops == nil || len(ops.Contents) != 1 || len(kind) >= size {
		return errors.New("name the qdisc: the object is not as expected")
	}
	value, ok := ops.Contents[0].Value.([]byte)
	if !ok || len(value) < size {
		return errors.New("name the qdisc: its operations are not as expected")
	}
	value = bytes.Clone(value)
	clear(value[:size])
	copy(value, kind)
	ops.Contents[0].Value = value
	return nil
}

// Kind is the name by which the qdisc is put on a device.
func (m *Merge) Kind() string { return m.kind }

// Heartbeat tells that the daemon lives: for a second from now on, packets wait for others.
func (m *Merge) Heartbeat() error {
	now, err := Now()
	if err != nil {
		return err
	}
	if err := m.objs.OlMergeHeartbeat.Set(now); err != nil {
		return fmt.Errorf("tell the merge that the daemon looks after it: %w", err)
	}
	return nil
}

// MergeCounters are totals of all resequencers since LoadMerge, in the order of enum ol_merge_counter.
type MergeCounters struct {
	Passed    uint64 // packets that went on in order, or behind what had
	Late      uint64 // of these, the latter
	Held      uint64 // packets that waited
	Gaps      uint64 // times that what they waited for had been lost on the way
	Expired   uint64 // times that they waited as long as the limit
	Unwatched uint64 // packets that did not wait, since no daemon looked after the merge
	Refused   uint64 // packets that were dropped, for want of room
	Dropped   uint64 // packets that a resequencer had when it was taken away
}

// Add is the sum of both.
func (c MergeCounters) Add(o MergeCounters) MergeCounters { return added(c, o) }

// Counters reads the totals.
func (m *Merge) Counters() (c MergeCounters, err error) {
	err = readCounters(m.objs.OlMergeCounters, &c)
	return c, err
}

// Waiting is how many packets wait now.
func (m *Merge) Waiting() (n uint64, err error) {
	for i := range uint32(mergeOlLimitOL_RESEQUENCERS) {
		var p mergeOlResequencer
		if err := m.objs.OlResequencers.Lookup(i, &p); err != nil {
			return n, fmt.Errorf("read resequencer %d: %w", i, err)
		}
		n += uint64(p.Held)
	}
	return n, nil
}

// Close lets go of the qdisc. Devices that have it keep it.
func (m *Merge) Close() error {
	var err error
	if m.link != nil {
		err = m.link.Close()
	}
	return errors.Join(err, m.objs.Close())
}

// magic marks this load's packets for its resequencers.
func magic(key [16]byte) uint32 { return binary.NativeEndian.Uint32(key[4:]) ^ 0x6d657267 | 1 }
