// SPDX-License-Identifier: Apache-2.0

package snmp

import "testing"

func TestLinesOfNamesAndOfValues(t *testing.T) {
	c := Counters{"Udp6InCsumErrors": 1}
	c.addPairs("Tcp: InSegs InCsumErrors\nTcp: 9 3\nUdp: InDatagrams NoPorts InErrors InCsumErrors\nUdp: 10 2 7 5\nTcpExt: A TCPOFOQueue\nTcpExt: 1 5\n")
	if c.UDPTaken() != 17 || c["TcpExt.TCPOFOQueue"] != 5 || c.BadChecksums() != 9 {
		t.Errorf("counters: %v", c)
	}
}
