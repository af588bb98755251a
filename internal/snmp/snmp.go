// SPDX-License-Identifier: Apache-2.0

// Package snmp reads the protocol counters of network namespaces.
package snmp

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/overlane/overlane/internal/netns"
)

// Counters are protocol counters of a namespace, by section and name, such as
// "Udp.InDatagrams" and "TcpExt.TCPOFOQueue".
type Counters map[string]uint64

// Read reads the counters of IPv4, TCP and UDP, and IPv6's beside them.
func Read(ns *netns.Handle) (Counters, error) {
	c := Counters{}
	err := ns.Do(func() error {
		for _, name := range []string{"snmp", "netstat"} {
			data, err := os.ReadFile("/proc/thread-self/net/" + name)
			if err != nil {
				return err
			}
			c.addPairs(string(data))
		}
		data, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if os.IsNotExist(err) {
			return nil
		}
		for line := range strings.Lines(string(data)) {
			f := strings.Fields(line)
			if len(f) == 2 {
				c[f[0]], _ = strconv.ParseUint(f[1], 10, 64)
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read network counters: %w", err)
	}
	return c, nil
}

// addPairs reads lines of names, each followed by a line of values.
func (c Counters) addPairs(text string) {
	var section string
	var names []string
	for line := range strings.Lines(text) {
		head, rest, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		if head != section || names == nil {
			section, names = head, strings.Fields(rest)
			continue
		}
		for i, v := range strings.Fields(rest) {
			if i < len(names) {
				c[section+"."+names[i]], _ = strconv.ParseUint(v, 10, 64)
			}
		}
		names = nil
	}
}

// UDPTaken is the number of datagrams that the UDP layer has taken: delivered
// to a socket, or refused there. InErrors contains the datagrams for which a
// socket had no room and those that its filter refused.
func (c Counters) UDPTaken() uint64 {
	return c["Udp.InDatagrams"] + c["Udp.InErrors"] + c["Udp6InDatagrams"] + c["Udp6InErrors"]
}

// BadChecksums is the number of packets that TCP and UDP have dropped because their checksum
// was wrong. TCP counts both versions of IP in one place.
func (c Counters) BadChecksums() uint64 {
	return c["Tcp.InCsumErrors"] + c["Udp.InCsumErrors"] + c["Udp6InCsumErrors"]
}
