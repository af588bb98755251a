// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"
)

// Where checksums are left to the receiver is read at a veth's other end, and followed there.
func TestChecksumsThatSendersLeave(t *testing.T) {
	w := newWorld(t)
	a, b := w.hosts()
	a.ip(t, vxlan)
	s := w.scanner(a)
	nic := func() Underlay {
		t.Helper()
		u := scan(t, s).Underlays
		if len(u) != 1 {
			t.Fatalf("%+v", u)
		}
		return u[0]
	}
	u := nic()
	if !strings.HasPrefix(u.Unfinished, "pB, the other end of pA, leaves checksums to the receiver") ||
		!strings.Contains(u.Unfinished, "; see: nsenter --net=") || !strings.HasSuffix(u.Unfinished, " ethtool -K pB tx off") {
		t.Error(u.Unfinished)
	}
	if r := u.Receivers[0]; r.Hidden() || r.Peer.Name != "pB" || r.Peer.NetnsCookie != b.cookie {
		t.Errorf("%+v", r)
	}
	inNS(t, b, "ethtool", "-K", "pB", "tx", "off")
	if why := s.Unfinished(u); why != "" {
		t.Errorf("switched off: %s", why)
	}
	u = nic()
	if u.Unfinished != "" {
		t.Errorf("switched off: %s", u.Unfinished)
	}
	inNS(t, b, "ethtool", "-K", "pB", "tx", "on")
	if why := s.Unfinished(u); why == "" {
		t.Error("switched on again: nothing is said")
	}
}

// A tap device may hand over what its program has left undone.
func TestChecksumsThatProgramsLeave(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	for header, want := range map[string]bool{"": false, " vnet_hdr": true} {
		a.ip(t, "tuntap add tap0 mode tap"+header+`
			addr add 10.6.0.1/24 dev tap0
			link set tap0 up
			link add vx0 type vxlan id 1 dstport 4789 local 10.6.0.1`)
		u := scan(t, w.scanner(a)).Underlays
		if len(u) != 1 || u[0].Name != "tap0" || strings.Contains(u[0].Unfinished, "the program behind tap0") != want {
			t.Errorf("tap%s: %+v", header, u)
		}
		a.ip(t, "link del vx0\nlink del tap0")
	}
}
