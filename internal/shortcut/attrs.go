// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"encoding/binary"

	"github.com/overlane/overlane/internal/nlsock"
)

// attrs are netlink attributes, one behind the other. No map of them: a port of a bridge has forty, of which
// four are asked for.
type attrs []byte

// attrsOf reads what follows a header of this size.
func attrsOf(b []byte, header int) attrs { return b[min(header, len(b)):] }

// find returns what an attribute holds; of several of one type, the last.
func (a attrs) find(t uint16) (v []byte, found bool) {
	for typ, data := range nlsock.Attrs(a) {
		if typ == t {
			v, found = data, true
		}
	}
	return v, found
}

func (a attrs) has(t uint16) bool { _, found := a.find(t); return found }

func (a attrs) get(t uint16) []byte { v, _ := a.find(t); return v }

// nested are those within one of them.
func (a attrs) nested(t uint16) attrs { return attrsOf(a.get(t), 0) }

func (a attrs) str(t uint16) string { return nlsock.Str(a.get(t)) }

// u32 reads a number, and be32 one in network byte order; what is too short, or not there, reads as zero.
func (a attrs) u32(t uint16) uint32 { return nlsock.U32(a.get(t)) }

func (a attrs) be32(t uint16) uint32 { return be32(a.get(t)) }

func (a attrs) flag(t uint16) bool { v := a.get(t); return len(v) > 0 && v[0] != 0 }

func be32(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

// answers asks one question, and parses each answer; what parse refuses is left out.
func answers[T any](c *nlsock.Conn, typ, flags uint16, req []byte, parse func([]byte) (T, bool)) (list []T, err error) {
	err = c.Do(typ, flags, req, func() { list = nil }, func(b []byte) error {
		if v, ok := parse(b); ok {
			list = append(list, v)
		}
		return nil
	})
	return list, err
}
