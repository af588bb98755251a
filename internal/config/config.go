// SPDX-License-Identifier: Apache-2.0

// Package config reads the configuration file of overlane.
//
// The file is optional and every key of it is: Default is what an empty file
// means. Decoding is strict. The first thing that is not understood is an
// *Error with file, line and what is allowed, and nothing of the file is used.
package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/overlane/overlane/internal/rules"
)

const (
	// maxSize bounds the time and the memory that a hostile file costs. Room for as many rules as there may be.
	maxSize = 512 << 10
	// maxDepth bounds nesting, in which the YAML parser needs memory and time quadratic: 4 GB for 100 KiB of brackets.
	maxDepth = 8
)

// Config is a whole configuration, with defaults filled in.
type Config struct {
	// Underlays names the devices to work on. Empty: every device of the
	// namespace that carries a tunnel's outer address.
	Underlays []string `json:"underlays,omitempty"`
	// Cores are those that receive work may be steered to while they are online. Empty: the housekeeping cores.
	Cores CPUList `json:"cores,omitempty"`
	// Pipeline steers by (flow, stage).
	Pipeline Mode `json:"pipeline"`
	// Microflows cut flows that are too much for one core.
	Microflows Microflows `json:"microflows"`
	// Aggregate joins datagrams of one flow that come in a row.
	Aggregate Mode `json:"aggregate"`
	// Express hands frames from the NICs straight to the pods: off, auto or forced.
	Express Mode `json:"express"`
	// BridgeNetfilter says whether bridges call netfilter's unused hooks.
	BridgeNetfilter BridgeNetfilter `json:"bridge_netfilter"`
	// Tier bounds which kernel facilities the pipeline uses.
	Tier Tier `json:"tier"`
	// Priority lets flows overtake others.
	Priority Priority `json:"priority"`
	// Limits say when overlane steps back.
	Limits Limits `json:"limits"`
	// Metrics is the address (IP:port) that Prometheus scrapes. Empty: none.
	Metrics string `json:"metrics,omitempty"`

	// Source tells where the values were read; see Config.Problem.
	Source Source `json:"-"`
}

// Mode says whether a mechanism acts, or that overlane decides it.
type Mode string

const (
	ModeAuto   Mode = "auto"   // the governor decides
	ModeOff    Mode = "off"    // never
	ModeForced Mode = "forced" // always, also when it makes things worse; for measurements
)

// Microflows says which flows are split, and into what.
type Microflows struct {
	Mode Mode `json:"mode"`
	// Batch is the frames of a micro-flow.
	Batch int `json:"batch"`
	// Cores is how many branches take the micro-flows of one flow, beside the core that
	// polls, at most.
	Cores int `json:"cores"`
	// Elephant is how much a flow has to bring to be split, in bit/s; 0: much of what one
	// core can do.
	Elephant uint64 `json:"elephant"`
	// UDPOrder says whether UDP flows are put in order again.
	UDPOrder UDPOrder `json:"udp_order"`
	// Hold is how long a packet waits at most for one that comes before it.
	Hold time.Duration `json:"hold_ns"`
}

// Limits of Microflows.Hold.
const (
	minHold = 10 * time.Millisecond
	maxHold = time.Second
)

// UDPOrder is what becomes of the order of UDP flows that are split.
type UDPOrder string

const (
	OrderExact UDPOrder = "exact" // they are put in order, or not split where that is impossible
	OrderNone  UDPOrder = "none"  // micro-flows may overtake each other
)

// What micro-flows can be.
const (
	MinBatch, MaxBatch       = 8, 512
	MinBranches, MaxBranches = 1, 8
)

// BridgeNetfilter is what becomes of the hooks that bridges call.
type BridgeNetfilter string

const (
	HooksKept   BridgeNetfilter = "keep"
	HooksUnused BridgeNetfilter = "skip-unused" // left out as long as they are unused
)

// Tier is the set of kernel facilities that may be used.
type Tier string

const (
	TierAuto Tier = "auto" // as tc; micro-flows may use XDP
	TierTC   Tier = "tc"   // tcx and RPS, no XDP
	TierXDP  Tier = "xdp"  // native XDP and cpumap; a failure where the node cannot
)

// Priority says which flows overtake bulk traffic, and how.
type Priority struct {
	Mode PriorityMode `json:"mode"`
	// Classify says whether flows that no rule fits may become latency by themselves.
	Classify Classify `json:"classify"`
	// Threads says whether NICs may be polled by threads.
	Threads Threads `json:"threads"`
	// BulkShare is how much of a core's time the latency class leaves to bulk, in percent.
	BulkShare int `json:"bulk_share"`
	// Rules name the flows; the first that fits wins.
	Rules []rules.Rule `json:"rules,omitempty"`
}

// PriorityMode is how latency traffic passes the stages.
type PriorityMode string

const (
	PriorityOff   PriorityMode = "off"
	PriorityBatch PriorityMode = "batch" // stage by stage, in small batches
	PrioritySync  PriorityMode = "sync"  // from the tunnel straight to the pod, where no policy is skipped
)

// Threads says what may become of a NIC's polls.
type Threads string

const (
	ThreadsAuto Threads = "auto" // a thread polls it in real time, where the NIC can
	ThreadsFair Threads = "fair" // the same, by the fair scheduler
	ThreadsOff  Threads = "off"  // softirq, as before; latency traffic has a lane of its own
)

// Classify is how flows get their class.
type Classify string

const (
	ClassifyRules Classify = "rules" // what no rule fits is bulk
	ClassifyAuto  Classify = "auto"  // what no rule fits is latency as long as it is small and sparse
	// ClassifyProven: the same where there are no rules, as far as a trial shows that it pays; with
	// rules, what none fits is bulk.
	ClassifyProven Classify = "proven"
)

// Limits are thresholds beyond which overlane goes back to the stock path.
type Limits struct {
	// BusyCores is the mean utilisation of the configured cores, in percent,
	// above which no mechanism acts that spends more CPU time.
	BusyCores int `json:"busy_cores"`
}

// Default returns the configuration of an empty file.
func Default() *Config {
	return &Config{
		Pipeline:  ModeAuto,
		Aggregate: ModeAuto,
		Express:   ModeOff,
		Tier:      TierAuto,

		BridgeNetfilter: HooksKept,

		Microflows: Microflows{Mode: ModeAuto, Batch: 256, Cores: MaxBranches, UDPOrder: OrderExact, Hold: 100 * time.Millisecond},
		Priority:   Priority{Mode: PriorityBatch, Classify: ClassifyProven, Threads: ThreadsAuto, BulkShare: 20},
		Limits:     Limits{BusyCores: 80},
		// No exporter's, by Prometheus's list of default ports, in which 9100 to 9999 are all given away.
		Metrics: "127.0.0.1:14789",
	}
}

// Source remembers the file and the line of each key that the file sets.
type Source struct {
	File  string
	Lines map[string]int // "cores", "limits.busy-cores"
}

// Error is a mistake in a configuration file.
type Error struct {
	File    string
	Line    int    // 0: not bound to a line
	Key     string // empty: not bound to a key
	Problem string
	Allowed string // what would be accepted, may be empty
}

func (e *Error) Error() string {
	s := e.Problem
	if e.Key != "" {
		s = e.Key + ": " + s
	}
	if e.Allowed != "" {
		s += "; " + e.Allowed
	}
	switch {
	case e.File != "" && e.Line > 0:
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, s)
	case e.File != "":
		return e.File + ": " + s
	}
	return s
}

// Problem returns an error about the value of a key that only the node can
// judge, such as a device that does not exist. It names the line when the key
// came from a file.
func (c *Config) Problem(key, problem, allowed string) *Error {
	e := &Error{Key: key, Problem: problem, Allowed: allowed}
	if line, ok := c.Source.Lines[key]; ok {
		e.File, e.Line = c.Source.File, line
	}
	return e
}

// Validate checks the configuration against the machine's cores: those that are there, online or not, and those of
// them that isolcpus or nohz_full has set apart. The kernel takes the latter out of every RPS mask
// (rps_cpumask_housekeeping).
func (c *Config) Validate(present, apart CPUList) error {
	problem := func(cores CPUList, what, allowed string) error {
		if len(cores) == 1 {
			return c.Problem("cores", fmt.Sprintf("core %s is %s", cores, what), allowed)
		}
		return c.Problem("cores", fmt.Sprintf("cores %s are %s", cores, what), allowed)
	}
	if none := c.Cores.Minus(present); len(none) > 0 {
		return problem(none, "not there", fmt.Sprintf("there are %s", present))
	}
	rest := c.Cores.Minus(apart)
	if set := c.Cores.Minus(rest); len(set) > 0 {
		return problem(set, "set apart by isolcpus or nohz_full, and the kernel sends no receive work there", fmt.Sprintf("possible are %s", present.Minus(apart)))
	}
	return nil
}

// Load reads the file at path.
func Load(path string) (*Config, error) {
	data, err := read(path)
	if err != nil {
		if pe, ok := errors.AsType[*os.PathError](err); ok {
			err = pe.Err
		}
		e := &Error{File: path, Problem: "cannot be read: " + err.Error()}
		if errors.Is(err, fs.ErrPermission) {
			e.Allowed = "allowed: a file that root owns or all may read, in folders that all may enter (run has given up the capability to read others)"
		}
		return nil, e
	}
	return Parse(path, data)
}

// read takes one byte more than a file may have, for Parse to refuse it.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSize+1))
}
