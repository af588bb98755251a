// SPDX-License-Identifier: Apache-2.0

package snmp

import "testing"

func TestSumsOfBothVersionsOfIP(t *testing.T) {
	n := func(n float64) *float64 { return &n }
	var c Counters
	if c.UDPTaken() != 0 || c.BadChecksums() != 0 {
		t.Errorf("counters of a kernel that has none: %d, %d", c.UDPTaken(), c.BadChecksums())
	}
	c.Tcp.InCsumErrors, c.Udp6.InCsumErrors = n(3), n(1)
	c.Udp.InDatagrams, c.Udp.InErrors, c.Udp.InCsumErrors = n(10), n(7), n(5)
	if c.UDPTaken() != 17 || c.BadChecksums() != 9 {
		t.Errorf("%d taken, %d bad checksums", c.UDPTaken(), c.BadChecksums())
	}
}
