// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/overlane/overlane/internal/plan"
)

// Entry is a setting that overlane has changed and not brought back.
type Entry struct {
	plan.Setting
	// By has changed it. Empty in a journal of before owners were named: it is restored when the next daemon starts.
	By plan.Owner `json:"by,omitempty"`
	// Inode is that of the namespace: a hint where to look for it.
	Inode uint64 `json:"inode,omitempty"`
	// Addr is the device's hardware address, which tells a device that was
	// renamed from another one with the same index.
	Addr string `json:"addr,omitempty"`
	// First is the value first seen, Wrote the one written last (or about
	// to be written when the record was made), Prev the one before that.
	First string `json:"first"`
	Wrote string `json:"wrote"`
	Prev  string `json:"prev,omitempty"`
	// Kept says why an earlier attempt to bring First back failed.
	Kept string `json:"kept,omitempty"`
}

// ours reports whether value is one that the setting can have through
// overlane alone: a crash may have come before or after the last write, and
// also before it was seen that a device does not do what it was asked for.
func (e Entry) ours(value string) bool {
	if e.Kind == plan.EthtoolFeature {
		value = plan.Requested(value)
	}
	return e.Same(value, e.Wrote) || e.Prev != "" && e.Same(value, e.Prev)
}

// record is one line of the journal: a header, or an entry that replaces an
// earlier one of the same setting.
type record struct {
	Header *header `json:"header,omitempty"`
	Entry  *Entry  `json:"entry,omitempty"`
}

type header struct {
	Version int    `json:"version"`
	Netns   uint64 `json:"netns"`
	// Boot is the boot in which cookies and indices have their meaning.
	Boot string `json:"boot"`
}

// state is what a journal says.
type state struct {
	head    *header
	entries []Entry // in the order in which the settings were first changed
	index   map[plan.Setting]int
	// size is how far the journal is sound: what follows is a torn record.
	size    int64
	damaged int
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A line is the length of the JSON text and its CRC-32C, in hex, then the
// text: `000000a1 5e0bd3f1 {...}`. People can read it, and a reader can find
// the next record behind a damaged one.
const prefixLen = 8 + 1 + 8 + 1

func encode(r record) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%s%s\n", prefix(body), body), nil
}

func prefix(body []byte) string {
	return fmt.Sprintf("%08x %08x ", len(body), crc32.Checksum(body, castagnoli))
}

func decodeLine(line []byte) (r record, err error) {
	if len(line) < prefixLen || string(line[:prefixLen]) != prefix(line[prefixLen:]) {
		return r, errors.New("not a record, or a damaged one")
	}
	return r, json.Unmarshal(line[prefixLen:], &r)
}

// decode reads a whole journal. Only a version or a namespace that is not
// ours is an error: damage is counted, and the rest is still worth restoring.
func decode(data []byte, cookie uint64) (state, error) {
	var st state
	for len(data) > 0 {
		line, rest, whole := bytes.Cut(data, []byte{'\n'})
		if !whole {
			break // torn: the write did not return, so nothing relied on it
		}
		st.size += int64(len(line)) + 1
		data = rest
		r, err := decodeLine(line)
		switch {
		case err != nil:
			st.damaged++
		case r.Header != nil:
			st.head = r.Header
			if r.Header.Version > journalVersion {
				return st, fmt.Errorf("journal is of version %d, this overlane knows %d: run `overlane off` of the newer one first",
					r.Header.Version, journalVersion)
			}
			if r.Header.Netns != cookie {
				return st, fmt.Errorf("journal is that of network namespace %d, not %d: it was moved here by hand", r.Header.Netns, cookie)
			}
		case r.Entry != nil && r.Entry.Validate() == nil:
			st.put(*r.Entry)
		default:
			st.damaged++
		}
	}
	return st, nil
}

// find returns a copy, nil if there is none.
func (st *state) find(s plan.Setting) *Entry {
	i, ok := st.index[s]
	if !ok {
		return nil
	}
	e := st.entries[i]
	return &e
}

func (st *state) put(e Entry) {
	if i, ok := st.index[e.Setting]; ok {
		st.entries[i] = e
		return
	}
	if st.index == nil {
		st.index = make(map[plan.Setting]int)
	}
	st.index[e.Setting] = len(st.entries)
	st.entries = append(st.entries, e)
}
