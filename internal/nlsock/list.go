// SPDX-License-Identifier: Apache-2.0

package nlsock

// List are netlink attributes, one behind the other. No map of them: a port of a bridge has forty, of which
// four are asked for.
type List []byte

// ListOf reads what follows a header of this size.
func ListOf(b []byte, header int) List { return b[min(header, len(b)):] }

// Find returns what an attribute holds; of several of one type, the last.
func (a List) Find(t uint16) (v []byte, found bool) {
	for typ, data := range Attrs(a) {
		if typ == t {
			v, found = data, true
		}
	}
	return v, found
}

// Has tells whether there is such an attribute.
func (a List) Has(t uint16) bool { _, found := a.Find(t); return found }

// Get returns what an attribute holds, nothing if there is none.
func (a List) Get(t uint16) []byte { v, _ := a.Find(t); return v }

// Nested are those within one of them.
func (a List) Nested(t uint16) List { return a.Get(t) }

// Str reads a string.
func (a List) Str(t uint16) string { return Str(a.Get(t)) }

// U32 reads a number; what is too short, or not there, reads as zero.
func (a List) U32(t uint16) uint32 { return U32(a.Get(t)) }

// U32BE reads one in network byte order.
func (a List) U32BE(t uint16) uint32 { return U32BE(a.Get(t)) }

// Flag reads a number of one byte, and tells whether it is another than zero.
func (a List) Flag(t uint16) bool { v := a.Get(t); return len(v) > 0 && v[0] != 0 }
