// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/config"
)

// ThreadID identifies a kernel thread: process numbers are reused, a number
// together with its start time is not.
type ThreadID struct {
	PID int
	// Start is field 22 of /proc/<pid>/stat, in clock ticks since boot.
	Start uint64
	// Comm is the thread's name, such as "napi/eth0-8193".
	Comm string
}

// Thread returns the setting that stands for the scheduling of a thread.
// The target says which device the thread serves; it may be empty.
func Thread(t Target, id ThreadID) Setting {
	return Setting{Target: t, Kind: ThreadSched, Attr: fmt.Sprintf("%d:%d:%s", id.PID, id.Start, id.Comm)}
}

// ParseThread reads the Attr of a ThreadSched setting.
func ParseThread(attr string) (ThreadID, error) {
	pid, rest, _ := strings.Cut(attr, ":")
	start, comm, ok := strings.Cut(rest, ":")
	if !ok || comm == "" {
		return ThreadID{}, errors.New("want pid:start:name")
	}
	p, err := strconv.ParseUint(pid, 10, 31)
	if err != nil || p == 0 {
		return ThreadID{}, fmt.Errorf("bad thread number %q", pid)
	}
	s, err := strconv.ParseUint(start, 10, 64)
	if err != nil {
		return ThreadID{}, fmt.Errorf("bad start time %q", start)
	}
	return ThreadID{PID: int(p), Start: s, Comm: comm}, nil
}

// Sched is the value of a ThreadSched setting.
type Sched struct {
	// Policy is "other", "batch", "idle", "fifo" or "rr".
	Policy string
	// Priority is 1 to 99 for fifo and rr, else 0.
	Priority int
	// Nice is -20 to 19; fifo and rr keep it but do not use it.
	Nice  int
	Cores []int
	// Slice is that of the thread alone, 0 for the scheduler's own.
	Slice time.Duration
}

func (s Sched) String() string {
	text := fmt.Sprintf("policy=%s prio=%d nice=%d cores=%s", s.Policy, s.Priority, s.Nice, coreList(s.Cores))
	if s.Slice != 0 {
		text += " slice=" + s.Slice.String()
	}
	return text
}

// ParseSched reads what Sched.String writes. All parts but the slice are required, so
// that a value never depends on what was there before.
func ParseSched(value string) (Sched, error) {
	var s Sched
	keys := []string{"policy", "prio", "nice", "cores", "slice"}
	fields := strings.Fields(value)
	if len(fields) < 4 || len(fields) > 5 {
		return s, fmt.Errorf("scheduling %q: want policy=, prio=, nice=, cores= and maybe slice=", value)
	}
	for i, key := range keys[:len(fields)] {
		k, v, _ := strings.Cut(fields[i], "=")
		if k != key {
			return s, fmt.Errorf("scheduling %q: %q where %s= is expected", value, fields[i], key)
		}
		var err error
		switch key {
		case "policy":
			s.Policy = v
		case "prio":
			s.Priority, err = strconv.Atoi(v)
		case "nice":
			s.Nice, err = strconv.Atoi(v)
		case "cores":
			s.Cores, err = config.ParseCPUList(v)
		case "slice":
			s.Slice, err = time.ParseDuration(v)
		}
		if err != nil {
			return s, fmt.Errorf("scheduling %q: %w", value, err)
		}
	}
	realtime := s.Policy == "fifo" || s.Policy == "rr"
	switch {
	case !realtime && s.Policy != "other" && s.Policy != "batch" && s.Policy != "idle":
		return s, fmt.Errorf("scheduling %q: unknown policy", value)
	case realtime && (s.Priority < 1 || s.Priority > 99), !realtime && s.Priority != 0:
		return s, fmt.Errorf("scheduling %q: priority does not go with the policy", value)
	case s.Nice < -20 || s.Nice > 19:
		return s, fmt.Errorf("scheduling %q: nice is -20 to 19", value)
	case s.Slice < 0 || realtime && s.Slice != 0:
		return s, fmt.Errorf("scheduling %q: slice does not go with the policy", value)
	case len(s.Cores) == 0:
		return s, fmt.Errorf("scheduling %q: no cores", value)
	}
	return s, nil
}
