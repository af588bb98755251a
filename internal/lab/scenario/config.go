// SPDX-License-Identifier: Apache-2.0

// Package scenario runs the lab's comparisons: traffic through a test bed, in
// one variant of the receiving host after the other, in interleaved rounds.
package scenario

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
)

// Config describes a series. The zero value of a field means its default.
type Config struct {
	Scenario string
	Variants []string
	Rounds   int
	Length   time.Duration // of one measurement
	Flows    int           // 0: the scenario's own number
	Rates    traffic.Rates
	Size     int     // UDP payload in bytes, or what is written to TCP at a time; 0: the scenario's own
	Load     float64 // background as a share of saturation; 0: the scenario's own
	Offer    float64 // above saturation, how many times what the host network takes; 0: a little more
	Slow     float64 // times that the machine is slower than usual; 0: not
	Busy     int     // cores that lanes may be on and a further program keeps busy
	Batch    int     // frames in a micro-flow; 0: the product's own number
	Awake    bool    // cores of the machine do not halt meanwhile
	// DaemonLog has Log take what each daemon logged, when it ends.
	DaemonLog bool
	Binary    string // the program overlane, which variants start
	Command   string // what to type to get this series again
	clients   int    // of a server, where the scenario has one
	eager     bool   // generators do not step back: for tests on busy machines
	Log       io.Writer
}

const (
	defaultRounds = 5
	defaultLength = 2 * time.Second
	defaultLoad   = 0.5
	defaultOffer  = 1.05
	mostOffer     = 4
	mostSlow      = 100
)

// Normalize fills in defaults and refuses what cannot be run on a bed.
func (c *Config) Normalize(nic bed.NIC) error {
	s, ok := find(scenarios, c.Scenario)
	if !ok {
		return fmt.Errorf("scenario %q: known are %s", c.Scenario, strings.Join(names(scenarios), ", "))
	}
	if len(c.Variants) == 0 {
		c.Variants = []string{"overlay", "host", "rps"}
	}
	if slices.Equal(c.Variants, []string{"all"}) {
		c.Variants = nil
		for _, v := range variants {
			if v.nic == "" || v.nic == nic {
				c.Variants = append(c.Variants, v.name)
			}
		}
	}
	for i, name := range c.Variants {
		v, ok := find(variants, name)
		if !ok {
			return fmt.Errorf("variant %q: known are %s", name, strings.Join(names(variants), ", "))
		}
		if v.nic != "" && v.nic != nic {
			return fmt.Errorf("variant %s needs --nic %s: %s", name, v.nic, v.why)
		}
		if slices.Contains(c.Variants[:i], name) {
			return fmt.Errorf("variant %s is named twice", name)
		}
	}
	c.Rounds = cmp.Or(c.Rounds, defaultRounds)
	c.Length = cmp.Or(c.Length, defaultLength)
	if c.Rounds < 0 || c.Length < 100*time.Millisecond || c.Length > 10*time.Minute {
		return fmt.Errorf("%d rounds of %s: at least 1 round of 0.1 to 600 seconds is possible", c.Rounds, c.Length)
	}
	c.Flows = cmp.Or(c.Flows, s.flows)
	if c.Flows < 1 || c.Flows > traffic.MaxFlows/2 {
		return fmt.Errorf("%d flows: 1 to %d are possible", c.Flows, traffic.MaxFlows/2)
	}
	c.Size = cmp.Or(c.Size, s.size)
	c.Rates = cmp.Or(c.Rates, traffic.Equal)
	if _, err := c.Rates.Schedule(c.Flows, 0); err != nil {
		return err
	}
	c.Load = cmp.Or(c.Load, s.load)
	if c.Load == 0 && len(s.points) == 0 {
		c.Load = defaultLoad
	}
	if c.Load != 0 && c.Load < 0.01 || c.Load > 10 {
		return fmt.Errorf("load %g: a share of saturation from 0.01 to 10 is possible", c.Load)
	}
	c.Offer = cmp.Or(c.Offer, defaultOffer)
	if !(c.Offer >= defaultOffer && c.Offer <= mostOffer) {
		return fmt.Errorf("offer %g: %g to %g times what the host network takes is possible", c.Offer, defaultOffer, float64(mostOffer))
	}
	c.Slow = cmp.Or(c.Slow, 1)
	if !(c.Slow >= 1 && c.Slow <= mostSlow) {
		return fmt.Errorf("slow %g: a machine is 1 to %d times slower", c.Slow, mostSlow)
	}
	if c.Batch != 0 && (c.Batch < config.MinBatch || c.Batch > config.MaxBatch) {
		return fmt.Errorf("batch %d: micro-flows of %d to %d frames are possible", c.Batch, config.MinBatch, config.MaxBatch)
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
	return nil
}

// Pods is how many pods a scenario wants on each host.
func (c *Config) Pods() int {
	s, _ := find(scenarios, c.Scenario)
	return min(max(cmp.Or(c.Flows, s.flows), 1), 4)
}

func kernelRelease() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // fails only for a bad pointer
	return unix.ByteSliceToString(u.Release[:])
}
