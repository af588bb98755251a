// SPDX-License-Identifier: Apache-2.0

package sense

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/node"
)

// Came is the part of the frames that polls of NICs claim that really came. Many drivers claim a whole budget for a
// poll that had much to tidy up of what they sent (mlx5, ice, i40e, igb and others). A NIC that tells nothing
// meanwhile says nothing: bnxt counts once a second.
func Came(frames, claimed uint64) float64 {
	if frames == 0 || frames >= claimed {
		return 1
	}
	return float64(frames) / float64(claimed)
}

// Received adds up the kernel's counts of packets that devices received.
type Received struct {
	files statistics
	last  map[node.DevKey]uint64
	sum   uint64
}

// Read returns the packets since the first call, of all devices while they were asked for.
func (r *Received) Read(s *node.Scanner, devs []node.Dev) uint64 {
	counts := r.files.read(s, devs)
	r.sum += since(r.last, counts)
	r.last = counts
	return r.sum
}

// Close lets go of the files.
func (r *Received) Close() { r.files.keep(nil) }

// since is what has been added to counts. One that begins anew, as with a reset of its NIC, adds nothing.
func since(last, counts map[node.DevKey]uint64) (packets uint64) {
	for key, n := range counts {
		if before, ok := last[key]; ok && n >= before {
			packets += n - before
		}
	}
	return packets
}

// statistics are files with what devices received. A read takes a pread for each; a file that is held open keeps
// neither its device nor its namespace.
type statistics map[node.DevKey]*os.File

// read reads those of some devices, and lets go of others.
func (f *statistics) read(s *node.Scanner, devs []node.Dev) map[node.DevKey]uint64 {
	if *f == nil {
		*f = statistics{}
	}
	counts := map[node.DevKey]uint64{}
	for _, dev := range devs {
		n, err := f.count(s, dev)
		if err != nil {
			continue // it is gone, or about to be: the next scan says so
		}
		counts[dev.Key()] = n
	}
	f.keep(counts)
	return counts
}

func (f *statistics) count(s *node.Scanner, dev node.Dev) (uint64, error) {
	file := (*f)[dev.Key()]
	if file == nil {
		root, err := s.Sysfs(dev.NetnsCookie)
		if err != nil {
			return 0, err
		}
		if file, err = root.Open("class/net/" + dev.Name + "/statistics/rx_packets"); err != nil {
			return 0, err
		}
		(*f)[dev.Key()] = file
	}
	var buf [24]byte
	n, err := unix.Pread(int(file.Fd()), buf[:], 0)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", file.Name(), err)
	}
	return strconv.ParseUint(strings.TrimSpace(string(buf[:n])), 10, 64)
}

func (f *statistics) keep(counts map[node.DevKey]uint64) {
	for key, file := range *f {
		if _, here := counts[key]; !here {
			file.Close()
			delete(*f, key)
		}
	}
}
