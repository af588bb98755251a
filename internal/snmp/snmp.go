// SPDX-License-Identifier: Apache-2.0

// Package snmp reads the protocol counters of network namespaces.
package snmp

import (
	"fmt"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
)

// Counters are protocol counters of a namespace: of IPv4, TCP and UDP, and IPv6's beside them. Those that
// its kernel does not have are nil.
type Counters struct {
	procfs.ProcSnmp
	procfs.ProcNetstat
	procfs.ProcSnmp6
}

// Read reads the counters.
func Read(ns *netns.Handle) (c Counters, err error) {
	err = ns.Do(func() error {
		threads, err := procfs.NewFS("/proc/self/task")
		if err != nil {
			return err
		}
		thread, err := threads.Proc(unix.Gettid())
		if err != nil {
			return err
		}
		if c.ProcSnmp, err = thread.Snmp(); err != nil {
			return err
		}
		if c.ProcNetstat, err = thread.Netstat(); err != nil {
			return err
		}
		c.ProcSnmp6, err = thread.Snmp6()
		return err
	})
	if err != nil {
		return c, fmt.Errorf("read network counters: %w", err)
	}
	return c, nil
}

// Sum adds up counters.
func Sum(counters ...*float64) (sum uint64) {
	for _, n := range counters {
		if n != nil {
			sum += uint64(*n)
		}
	}
	return sum
}

// UDPTaken is the number of datagrams that the UDP layer has taken: delivered
// to a socket, or refused there. InErrors contains the datagrams for which a
// socket had no room and those that its filter refused.
func (c Counters) UDPTaken() uint64 {
	return Sum(c.Udp.InDatagrams, c.Udp.InErrors, c.Udp6.InDatagrams, c.Udp6.InErrors)
}

// BadChecksums is the number of packets that TCP and UDP have dropped because their checksum
// was wrong. TCP counts both versions of IP in one place.
func (c Counters) BadChecksums() uint64 {
	return Sum(c.Tcp.InCsumErrors, c.Udp.InCsumErrors, c.Udp6.InCsumErrors)
}
