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

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/polled"
	"github.com/overlane/overlane/internal/privilege"
)

func (s *settingPlace) getAttr() (string, error) { return netns.ReadAttr(s.dev, s.Attr) }

func (s *settingPlace) putAttr(value string) error { return writeAttr(s.dev, s.Attr, value) }

// FeatureValue spells the state of a feature as ethtool(8) does, without "[fixed]": "on", "off", or
// "off [requested on]" where a request waits for something else to change.
func FeatureValue(f ethtool.Feature) string {
	spelt := map[bool]string{true: "on", false: "off"}
	if !f.Fixed && f.Active != f.Requested {
		return spelt[f.Active] + " [requested " + spelt[f.Requested] + "]"
	}
	return spelt[f.Active]
}

func (s *settingPlace) getFeature() (string, error) {
	all, err := netns.Read(s.handle, func() (map[string]ethtool.Feature, error) { return ethtool.Features(s.Name) })
	if err != nil {
		return "", err
	}
	f, known := all[s.Attr]
	if !known {
		return "", fmt.Errorf("%w: get feature %s of %s: %w", fs.ErrNotExist, s.Attr, s.Name, ethtool.ErrUnknown)
	}
	return FeatureValue(f), nil
}

func (s *settingPlace) putFeature(value string) error {
	on := plan.Requested(value)
	if on != "on" && on != "off" {
		return fmt.Errorf("%q is neither on nor off", value)
	}
	set := func() error { return ethtool.SetFeature(s.Name, s.Attr, on == "on") }
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

func (s *settingPlace) getSysctl() (value string, err error) {
	err = s.sysctl(func(root *os.Root) error {
		value, err = netns.ReadAttr(root, s.Attr)
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
	var stat procfs.ProcStat
	proc, err := procfs.NewProc(tid)
	if err == nil {
		stat, err = proc.Stat()
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		err = errGone
	}
	if err != nil {
		return plan.ThreadID{}, err
	}
	return plan.ThreadID{PID: tid, Start: stat.Starttime, Comm: stat.Comm}, nil
}

var policies = map[uint32]string{
	unix.SCHED_NORMAL: "other",
	unix.SCHED_BATCH:  "batch",
	unix.SCHED_IDLE:   "idle",
	unix.SCHED_FIFO:   "fifo",
	unix.SCHED_RR:     "rr",
}

// SchedOf reads how a thread is scheduled.
func SchedOf(id plan.ThreadID) (plan.Sched, error) {
	a, err := unix.SchedGetAttr(id.PID, 0)
	if err != nil {
		return plan.Sched{}, fmt.Errorf("read scheduling: %w", err)
	}
	policy, ok := policies[a.Policy]
	if !ok {
		return plan.Sched{}, fmt.Errorf("scheduling policy %d: overlane does not handle it", a.Policy)
	}
	cores, err := allowedCores(id.PID)
	if err != nil {
		return plan.Sched{}, err
	}
	slice, err := ownSlice(a)
	if err != nil {
		return plan.Sched{}, err
	}
	return plan.Sched{Policy: policy, Priority: int(a.Priority), Nice: int(a.Nice), Cores: cores, Slice: slice}, nil
}

func (s *settingPlace) getSched() (string, error) {
	id, err := plan.ParseThread(s.Attr)
	if err != nil {
		return "", err
	}
	sched, err := SchedOf(id)
	return sched.String(), err
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

// allowedCores reads where a thread may run. sched_getaffinity leaves out
// cores that are offline now: a value that was seen then could not be brought back.
func allowedCores(tid int) ([]int, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return nil, fmt.Errorf("read affinity: %w", err)
	}
	const key = "\nCpus_allowed_list:"
	_, rest, ok := strings.Cut(string(status), key)
	if !ok {
		return nil, fmt.Errorf("read affinity: /proc/%d/status has none", tid)
	}
	list, _, _ := strings.Cut(rest, "\n")
	return config.ParseCPUList(strings.TrimSpace(list))
}

func (s *settingPlace) putSched(value string) error {
	id, err := plan.ParseThread(s.Attr)
	if err != nil {
		return err
	}
	want, err := plan.ParseSched(value)
	if err != nil {
		return err
	}
	a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Priority: uint32(want.Priority), Nice: int32(want.Nice), Runtime: uint64(want.Slice)}
	for number, name := range policies {
		if name == want.Policy {
			a.Policy = number
		}
	}
	if err := privilege.With(unix.CAP_SYS_NICE, func() error { return unix.SchedSetAttr(id.PID, &a, 0) }); err != nil {
		return fmt.Errorf("set scheduling: %w", err)
	}
	set := unix.NewCPUSet(polled.MaxCores)
	for _, c := range want.Cores {
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
	if slices.Equal(now.Cores, want.Cores) {
		return nil
	}
	if err := privilege.With(unix.CAP_SYS_NICE, func() error { return unix.SchedSetaffinityDynamic(id.PID, set) }); err != nil {
		return fmt.Errorf("set affinity: %w", err)
	}
	return nil
}
