// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply/offload"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/polled"
	"github.com/overlane/overlane/internal/privilege"
)

// getFeature spells the value as offload.Feature does: "on", "off", or
// "off [requested on]" where a request waits for something else to change.
func (s *settingPlace) getFeature() (string, error) {
	var f offload.Feature
	err := s.handle.Visit(func() error {
		var err error
		f, err = offload.Get(s.Name, s.Attr)
		return err
	})
	if errors.Is(err, offload.ErrUnknown) {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return f.String(), err
}

func (s *settingPlace) putFeature(value string) error {
	on := plan.Requested(value)
	if on != "on" && on != "off" {
		return fmt.Errorf("%q is neither on nor off", value)
	}
	set := func() error { return offload.Set(s.Name, s.Attr, on == "on") }
	// What GRO holds by a feature could be overtaken.
	if s.Attr != plan.UDPForwarding || on == "on" {
		return s.handle.Visit(set)
	}
	return s.handle.Do(func() error { return polled.On(s.k.polls(), set) })
}

// sysctl opens /proc/sys in the namespace: below net/ the kernel shows each
// thread the values of the namespace it is in.
func (s *settingPlace) sysctl(fn func(*os.Root) error) error {
	return s.handle.Do(func() error {
		root, err := os.OpenRoot("/proc/sys")
		if err != nil {
			return err
		}
		return errors.Join(fn(root), root.Close())
	})
}

func (s *settingPlace) getSysctl() (string, error) {
	var value string
	err := s.sysctl(func(root *os.Root) error {
		var err error
		value, err = readAttr(root, s.Attr)
		return err
	})
	return value, err
}

func (s *settingPlace) putSysctl(value string) error {
	return s.sysctl(func(root *os.Root) error { return writeAttr(root, s.Attr, value) })
}

// findThread returns errGone if the thread has ended, even if its number has
// been given to another one.
func findThread(attr string) error {
	id, err := plan.ParseThread(attr)
	if err != nil {
		return err
	}
	now, err := IdentifyThread(id.PID)
	if err == nil && now.Start != id.Start {
		err = errGone
	}
	return err
}

// IdentifyThread returns which thread has a number now.
func IdentifyThread(tid int) (plan.ThreadID, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		err = errGone
	}
	if err != nil {
		return plan.ThreadID{}, err
	}
	// The name is in parentheses and may contain any of them.
	before, rest, ok := cutLast(string(stat), ") ")
	_, comm, named := strings.Cut(before, " (")
	fields := strings.Fields(rest)
	if !ok || !named || len(fields) < 20 {
		return plan.ThreadID{}, fmt.Errorf("/proc/%d/stat has an unknown form", tid)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return plan.ThreadID{}, fmt.Errorf("/proc/%d/stat: %w", tid, err)
	}
	return plan.ThreadID{PID: tid, Start: start, Comm: comm}, nil
}

// SchedOf reads how a thread is scheduled.
func SchedOf(id plan.ThreadID) (plan.Sched, error) {
	value, err := getSched(plan.Thread(plan.Target{}, id).Attr)
	if err != nil {
		return plan.Sched{}, err
	}
	return plan.ParseSched(value)
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

var policies = map[uint32]string{
	unix.SCHED_NORMAL: "other",
	unix.SCHED_BATCH:  "batch",
	unix.SCHED_IDLE:   "idle",
	unix.SCHED_FIFO:   "fifo",
	unix.SCHED_RR:     "rr",
}

func getSched(attr string) (string, error) {
	id, err := plan.ParseThread(attr)
	if err != nil {
		return "", err
	}
	a, err := unix.SchedGetAttr(id.PID, 0)
	if err != nil {
		return "", fmt.Errorf("read scheduling: %w", err)
	}
	policy, ok := policies[a.Policy]
	if !ok {
		return "", fmt.Errorf("scheduling policy %d: overlane does not handle it", a.Policy)
	}
	cores, err := allowedCores(id.PID)
	if err != nil {
		return "", err
	}
	value := fmt.Sprintf("policy=%s prio=%d nice=%d cores=%s", policy, a.Priority, a.Nice, cores)
	slice, err := ownSlice(a)
	if err != nil {
		return "", err
	}
	if slice != 0 {
		value += " slice=" + slice.String()
	}
	_, err = plan.ParseSched(value)
	return value, err
}

// ownSlice is the slice that a thread was given, or 0. The kernel tells the scheduler's
// own, too, which is that of any other thread: of this one.
func ownSlice(a *unix.SchedAttr) (time.Duration, error) {
	if a.Policy != unix.SCHED_NORMAL && a.Policy != unix.SCHED_BATCH {
		return 0, nil
	}
	usual, err := usualSlice()
	if err != nil || a.Runtime == usual {
		return 0, err
	}
	return time.Duration(a.Runtime), nil
}

func usualSlice() (ns uint64, err error) {
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return 0, fmt.Errorf("read scheduling of this process: %w", err)
	}
	return a.Runtime, nil
}

// KnowsSlices tells whether a thread can have a slice of its own here: before 6.12 the
// kernel neither takes nor tells one.
func KnowsSlices() bool {
	ns, err := usualSlice()
	return err == nil && ns != 0
}

// allowedCores reads where a thread may run, as "0-3,8". sched_getaffinity leaves out
// cores that are offline now: a value that was seen then could not be brought back.
func allowedCores(tid int) (string, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return "", fmt.Errorf("read affinity: %w", err)
	}
	const key = "\nCpus_allowed_list:"
	_, rest, ok := strings.Cut(string(status), key)
	if !ok {
		return "", fmt.Errorf("read affinity: /proc/%d/status has none", tid)
	}
	list, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(list), nil
}

func putSched(attr, value string) error {
	id, err := plan.ParseThread(attr)
	if err != nil {
		return err
	}
	s, err := plan.ParseSched(value)
	if err != nil {
		return err
	}
	a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Priority: uint32(s.Priority), Nice: int32(s.Nice), Runtime: uint64(s.Slice)}
	for number, name := range policies {
		if name == s.Policy {
			a.Policy = number
		}
	}
	if err := privilege.With(unix.CAP_SYS_NICE, func() error { return unix.SchedSetAttr(id.PID, &a, 0) }); err != nil {
		return fmt.Errorf("set scheduling: %w", err)
	}
	set := unix.NewCPUSet(polled.MaxCores)
	for _, c := range s.Cores {
		if c >= polled.MaxCores {
			return fmt.Errorf("core %d: beyond what kernels are built for", c)
		}
		set.Set(c)
	}
	now, err := SchedOf(id)
	if err != nil {
		return err
	}
	// A bound kernel thread refuses any affinity, its own included.
	if slices.Equal(now.Cores, s.Cores) {
		return nil
	}
	if err := privilege.With(unix.CAP_SYS_NICE, func() error { return unix.SchedSetaffinityDynamic(id.PID, set) }); err != nil {
		return fmt.Errorf("set affinity: %w", err)
	}
	return nil
}
