// SPDX-License-Identifier: Apache-2.0

package oracle

// Tracker remembers the first fragments of datagrams, without limit.
type Tracker struct {
	first map[datagram]Flow
}

type datagram struct {
	flow Flow // without ports
	id   uint32
}

// Classify is like the function of that name, and gives later fragments the flow of
// their first.
func (t *Tracker) Classify(v View, tunnels []Tunnel) (Flow, Reason) {
	f, r := Classify(v, tunnels)
	if r != OK || f.Fragment == Whole {
		return f, r
	}
	key := datagram{Flow{Src: f.Src, Dst: f.Dst, Proto: f.Proto, VNI: f.VNI}, f.ID}
	if f.Fragment == First {
		if t.first == nil {
			t.first = map[datagram]Flow{}
		}
		t.first[key] = f
		return f, OK
	}
	first, ok := t.first[key]
	if !ok {
		return f, FragmentUntracked
	}
	return first, OK
}
