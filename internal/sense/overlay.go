// SPDX-License-Identifier: Apache-2.0

package sense

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/node"
)

// Overlay turns the kernel's counts of packets that came out of tunnels into a rate. What GRO has
// joined counts as one. A read takes a pread for each tunnel; a file that is held open keeps neither
// its device nor its namespace.
type Overlay struct {
	files map[node.DevKey]*os.File
	last  map[node.DevKey]uint64
	other uint64 // that passed the tunnels by
	when  time.Time
	rate  float64
	known bool
}

// Read returns the packets a second of all tunnels since the last call, and of those that express handed
// past them; false: there was no call before. For the same time it is read once.
func (o *Overlay) Read(now time.Time, s *node.Scanner, tunnels []node.Tunnel, express uint64) (float64, bool) {
	if now.Equal(o.when) {
		return o.rate, o.known
	}
	if o.files == nil {
		o.files = map[node.DevKey]*os.File{}
	}
	counts := map[node.DevKey]uint64{}
	for _, t := range tunnels {
		n, err := o.count(s, t)
		if err != nil {
			continue // it is gone, or about to be: the next scan says so
		}
		counts[t.Key()] = n
	}
	for key, f := range o.files {
		if _, here := counts[key]; !here {
			f.Close()
			delete(o.files, key)
		}
	}
	since := now.Sub(o.when)
	o.rate, o.known = 0, !o.when.IsZero() && since > 0
	if o.known {
		var packets uint64
		for key, n := range counts {
			if before, ok := o.last[key]; ok && n >= before {
				packets += n - before
			}
		}
		if express >= o.other {
			packets += express - o.other
		}
		o.rate = float64(packets) / since.Seconds()
	}
	o.last, o.other, o.when = counts, express, now
	return o.rate, o.known
}

func (o *Overlay) count(s *node.Scanner, t node.Tunnel) (uint64, error) {
	f := o.files[t.Key()]
	if f == nil {
		root, err := s.Sysfs(t.NetnsCookie)
		if err != nil {
			return 0, err
		}
		if f, err = root.Open("class/net/" + t.Name + "/statistics/rx_packets"); err != nil {
			return 0, err
		}
		o.files[t.Key()] = f
	}
	var buf [24]byte
	n, err := unix.Pread(int(f.Fd()), buf[:], 0)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return strconv.ParseUint(strings.TrimSpace(string(buf[:n])), 10, 64)
}

// Close lets go of the files.
func (o *Overlay) Close() {
	for key, f := range o.files {
		f.Close()
		delete(o.files, key)
	}
}
