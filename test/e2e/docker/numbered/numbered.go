// SPDX-License-Identifier: Apache-2.0

// Package numbered is the program of the containers: it sends UDP datagrams with numbers, or reads
// them, by system calls that any application makes. It needs nothing but itself in its container.
package numbered

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/datagram"
)

const (
	// greeting is the number of a datagram that asks whether the reader is there.
	greeting = 1<<64 - 1
	// maxFlows and maxSize bound what a reader keeps.
	maxFlows = 256
	maxSize  = 1400
	// batch is the most datagrams that one system call reads, and sends.
	batch = 64
)

// Counters are what one of the two has to say of itself.
type Counters struct {
	Sent  uint64 // datagrams
	Ended bool   // no more are sent

	Received   uint64 // distinct datagrams
	Late       uint64 // of these, came after one with a higher number
	Duplicated uint64
	Stale      uint64 // too far behind to tell a duplicate from a late one
	Missing    uint64 // below the highest number of their flow, and did not come
	Corrupt    uint64 // with other bytes than were sent
	// Overflow is what the kernel dropped at the reader's socket.
	Overflow uint64

	At time.Duration // when, of the monotonic clock
}

// Load reads the counters that a program last wrote.
func Load(path string) (c Counters, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(data, &c)
}

func (c Counters) save(path string) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	c.At = time.Duration(now.Nano())
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	// A test finds it complete at any time.
	tmp := filepath.Join(filepath.Dir(path), ".new")
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Main is the program.
func Main() error {
	s, r := sender{}, reader{}
	file := flag.String("counters", "", "write counters to this `file`")
	flag.StringVar(&s.to, "to", "", "send to this `address:port`")
	flag.IntVar(&s.flows, "flows", 1, "send so many flows")
	flag.IntVar(&s.size, "size", 64, "send datagrams of so many bytes")
	flag.IntVar(&s.rate, "rate", 0, "send so many datagrams a second; 0: as many as the core can")
	flag.IntVar(&s.burst, "burst", 16, "send so many datagrams with one system call (UDP_SEGMENT)")
	flag.IntVar(&r.port, "port", 0, "read from this `port`")
	flag.BoolVar(&r.gro, "gro", false, "read datagrams in a row as one (UDP_GRO)")
	flag.Parse()
	switch {
	case *file == "" || (s.to == "") == (r.port == 0):
		return fmt.Errorf("wanted: -counters FILE, and one of -to and -port")
	case s.to != "" && (s.flows < 1 || s.flows > maxFlows || s.size < datagram.MinSize || s.size > maxSize || s.burst < 1 || s.burst > batch || s.rate < 0):
		return fmt.Errorf("allowed: -flows 1 to %d, -size %d to %d, -burst 1 to %d, -rate 0 and more", maxFlows, datagram.MinSize, maxSize, batch)
	case s.to != "":
		return s.run(*file)
	default:
		return r.run(*file)
	}
}

// overflow reads what the kernel dropped at UDP sockets of this namespace for want of room.
func overflow() (uint64, error) {
	data, err := os.ReadFile("/proc/net/snmp")
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] != "Udp:":
		case names == nil:
			names = fields
		default:
			for i, name := range names {
				if name == "RcvbufErrors" {
					return strconv.ParseUint(fields[i], 10, 64)
				}
			}
		}
	}
	return 0, fmt.Errorf("no RcvbufErrors in /proc/net/snmp")
}

func setTimeout(fd int, d time.Duration) error {
	tv := unix.NsecToTimeval(d.Nanoseconds())
	return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
}
