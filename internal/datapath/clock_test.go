// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net"
	"testing"
)

// A core that receives is seen to, and so are datagrams that no socket has room for.
func TestClockTellsWhatReceivingCosts(t *testing.T) {
	c, err := load(t).LoadClock()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := in.SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	out, err := net.Dial("udp4", in.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	before, err := c.Read()
	if err != nil {
		t.Fatal(err)
	}
	const sent = 1000
	for range sent {
		if _, err := out.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	after, err := c.Read()
	if err != nil {
		t.Fatal(err)
	}
	if n := after.Unread - before.Unread; n < sent/2 || after.Busy <= before.Busy {
		t.Errorf("%d of %d datagrams found no room, in %v of receiving", n, sent, after.Busy-before.Busy)
	}
}
