// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/node"
)

// MemoryFile is where it is kept, in the folder of the NICs' namespace.
const MemoryFile = "xdp.json"

// Folder is where memory lasts.
type Folder interface {
	ReadFile(name string) ([]byte, error)
	WriteFile(name string, data []byte) error
}

// Memory is what was found out about NICs by attaching XDP programs to them.
type Memory struct {
	folder  Folder // nil: it does not last
	records []record
}

// record is about one NIC with one MTU: igb, say, refuses by that.
type record struct {
	Driver string `json:"driver"`
	// At is the NIC's bus address. Virtual devices have none, and are remembered by Index until
	// the daemon ends.
	At    string `json:"at,omitempty"`
	Index int    `json:"-"`
	MTU   int    `json:"mtu"`
	// Refused is why its driver refused, and With are the settings that it refused with.
	Refused string `json:"refused,omitempty"`
	With    string `json:"with,omitempty"`
	// Attached tells that an attach was seen, and Harm what it did.
	Attached bool     `json:"attached,omitempty"`
	Harm     []string `json:"harm,omitempty"`
	// headless: its driver puts headers where XDP does not read. What decides that has no common name, so it is
	// seen anew by each daemon.
	headless bool
	// unfinished: frames came there whose senders had left the checksum to the receiver.
	unfinished bool
}

type memoryFile struct {
	Version int `json:"version"`
	// Kernel is the release whose drivers it is about.
	Kernel string   `json:"kernel"`
	NICs   []record `json:"nics"`
}

const memoryVersion = 1

// Remember reads what earlier daemons found out. nil: nothing lasts. On an error the memory is empty,
// and can be used.
func Remember(folder Folder) (*Memory, error) {
	m := &Memory{folder: folder}
	if folder == nil {
		return m, nil
	}
	data, err := folder.ReadFile(MemoryFile)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("read what is known of NICs: %w", err)
	}
	var f memoryFile
	if err := json.Unmarshal(data, &f); err != nil {
		return m, fmt.Errorf("read what is known of NICs: %s: %w", MemoryFile, err)
	}
	if f.Version == memoryVersion && f.Kernel == kernelRelease() {
		m.records = f.NICs
	}
	return m, nil
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

func (m *Memory) save() error {
	if m.folder == nil {
		return nil
	}
	f := memoryFile{Version: memoryVersion, Kernel: kernelRelease()}
	for _, r := range m.records {
		if r.At != "" {
			f.NICs = append(f.NICs, r)
		}
	}
	if len(f.NICs) == 0 {
		return nil
	}
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return m.folder.WriteFile(MemoryFile, append(data, '\n'))
}

func (r *record) is(u node.Underlay) bool {
	return r.Driver == u.Driver && r.At == u.At && (r.At != "" || r.Index == u.Ifindex)
}

// of is what is known of a NIC with its present MTU.
func (m *Memory) of(u node.Underlay) record {
	if i := m.index(u); i >= 0 {
		return m.records[i]
	}
	return record{}
}

func (m *Memory) index(u node.Underlay) int {
	return slices.IndexFunc(m.records, func(r record) bool { return r.is(u) && r.MTU == u.MTU })
}

// make is the record of a NIC with its present MTU, to be changed.
func (m *Memory) make(u node.Underlay) *record {
	i := m.index(u)
	if i < 0 {
		i = len(m.records)
		m.records = append(m.records, record{Driver: u.Driver, At: u.At, Index: u.Ifindex, MTU: u.MTU})
	}
	return &m.records[i]
}

// harm is what an attach did to the NIC, with whatever MTU.
func (m *Memory) harm(u node.Underlay) string {
	for i := range m.records {
		if r := &m.records[i]; r.is(u) && len(r.Harm) > 0 {
			return strings.Join(r.Harm, ", and ")
		}
	}
	return ""
}

// harmless tells that an attach was seen, with the present MTU, and that nothing came of it.
func (m *Memory) harmless(u node.Underlay) bool {
	r := m.of(u)
	return r.Attached && len(r.Harm) == 0
}

func (m *Memory) refused(u node.Underlay, s State, why string) error {
	r := m.make(u)
	r.Refused, r.With = why, s.settings()
	return m.save()
}

// reconsider forgets a refusal that was for other settings.
func (m *Memory) reconsider(u node.Underlay, now State) bool {
	if r := m.of(u); r.Refused == "" || r.With == now.settings() {
		return false
	}
	r := m.make(u)
	r.Refused, r.With = "", ""
	_ = m.save() // the next refusal is written again
	return true
}

// attached takes what a NIC was like before an attach and after. A driver that restarts the link does so each
// time: where one of two attaches came without that, the other one met a link that went down by itself.
func (m *Memory) attached(u node.Underlay, before, after State) error {
	r := m.make(u)
	seen := harm(before, after)
	restarts := func(list []string) bool { return slices.Contains(list, string(RestartsLink)) }
	chance := r.Attached && restarts(r.Harm) != restarts(seen)
	r.Refused, r.With, r.Attached = "", "", true
	r.Harm = slices.Compact(slices.Sorted(slices.Values(append(r.Harm, seen...))))
	if chance {
		r.Harm = slices.DeleteFunc(r.Harm, func(h string) bool { return h == string(RestartsLink) })
	}
	return m.save()
}

// State is what an attach may change about a NIC.
type State struct {
	Up      bool              // it is, and has a carrier
	Changes map[string]uint64 // of the carrier, of each device that receives
	// Offloads are the features that are active, and Queues how many there are.
	Offloads map[string]bool
	Queues   int
}

// settings are what drivers refuse by, in one word.
func (s State) settings() string {
	on := slices.Sorted(maps.Keys(s.Offloads))
	on = slices.DeleteFunc(on, func(name string) bool { return !s.Offloads[name] })
	return fmt.Sprintf("%d queues, %s", s.Queues, strings.Join(on, " "))
}

// harm is what has become worse.
func harm(before, after State) (list []string) {
	for dev, n := range after.Changes {
		if was, known := before.Changes[dev]; known && n != was {
			list = append(list, string(RestartsLink))
			break
		}
	}
	if before.Up && !after.Up && len(list) == 0 {
		list = append(list, string(RestartsLink))
	}
	var lost []string
	for name, on := range before.Offloads {
		if on && !after.Offloads[name] {
			lost = append(lost, name)
		}
	}
	if len(lost) > 0 {
		slices.Sort(lost)
		list = append(list, "switches off "+strings.Join(lost, ", "))
	}
	return list
}
