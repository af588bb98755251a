// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"net"
	"testing"
)

// A host's socket without an address has GRO leave alone what pods get on that port.
func TestASocketWithoutAnAddressTakesItsPortFromGRO(t *testing.T) {
	for _, tt := range []struct {
		network, addr string
		takes         bool
	}{
		{"udp4", "0.0.0.0:0", true}, {"udp6", "[::]:0", true}, {"udp4", "127.0.0.1:0", false},
	} {
		t.Run(tt.network+" "+tt.addr, func(t *testing.T) {
			c, err := net.ListenPacket(tt.network, tt.addr)
			if err != nil {
				t.Fatal(err)
			}
			port := uint16(c.LocalAddr().(*net.UDPAddr).Port)
			if got, err := TakenByGRO(port); got != tt.takes || err != nil {
				t.Errorf("port %d is taken: %t (%v), want %t", port, got, err, tt.takes)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			if got, err := TakenByGRO(port); got || err != nil {
				t.Errorf("port %d is taken by no socket: %v", port, err)
			}
		})
	}
}
