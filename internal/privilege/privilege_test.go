// SPDX-License-Identifier: Apache-2.0

package privilege

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/test/patience"
)

// roleVar makes the test binary one of these.
const roleVar = "OVERLANE_TEST_PRIVILEGE"

const (
	drops    = "drops"    // what it need not keep, and says what is left
	replaced = "replaced" // the same, when another program lies in its place
	says     = "says"     // what it may do
	lowers   = "lowers"   // what it need not have in force, after it has dropped the rest
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleVar)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := play(role); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func play(role string) error {
	if exe, err := os.Executable(); err != nil {
		return err
	} else if role == replaced && filepath.Base(exe) == victim {
		other := exe + ".new"
		err := os.WriteFile(other, []byte("#!/bin/sh\necho another program\n"), 0o700)
		if err = errors.Join(err, os.Rename(other, exe)); err != nil {
			return err
		}
	}
	if role != says {
		if err := Drop(Daemon()); err != nil {
			return err
		}
	}
	var raised []Set
	linked := false
	if role == lowers {
		err := Lower()
		if linked = errors.Is(err, ErrLinkedWithC); err != nil && !linked {
			return err
		}
		if raised, err = raise(); err != nil {
			return err
		}
	}
	// Threads of all sorts: locked ones, and whatever the runtime makes beside them.
	stay := make(chan struct{})
	defer close(stay)
	for range 8 {
		locked := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(locked)
			<-stay
		}()
		<-locked
	}
	a, err := ofSelf()
	if err != nil {
		return err
	}
	a.Raised, a.Linked = raised, linked
	return json.NewEncoder(os.Stdout).Encode(a)
}

// raise tells what is in force on the way in and out of capabilities that are raised, the last of
// which is not kept.
func raise() (list []Set, err error) {
	note := func() error {
		t, err := current()
		list = append(list, t.effective)
		return err
	}
	err = errors.Join(note(),
		With(unix.CAP_SYS_ADMIN, func() error { return errors.Join(note(), With(unix.CAP_SYS_PTRACE, note), note()) }),
		note(), With(unix.CAP_CHOWN, note))
	return list, err
}

// victim is the name of a program that another one takes the place of.
const victim = "victim"

// account is what a process says of itself.
type account struct {
	PID         int
	Name        string
	Args        []string
	ParentDeath int32
	Raised      []Set
	Linked      bool                // with C
	Threads     []map[string]string // the lines of /proc/self/task/TID/status that tell privileges
}

func ofSelf() (a account, err error) {
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		return a, err
	}
	a = account{PID: os.Getpid(), Name: strings.TrimSpace(string(name)), Args: os.Args[1:], ParentDeath: parentDeath}
	files, err := filepath.Glob("/proc/self/task/*/status")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return a, err
		}
		about := map[string]string{}
		for line := range strings.Lines(string(data)) {
			key, value, _ := strings.Cut(line, ":")
			if strings.HasPrefix(key, "Cap") || key == "NoNewPrivs" {
				about[key] = strings.TrimSpace(value)
			}
		}
		a.Threads = append(a.Threads, about)
	}
	return a, err
}

// process runs the test binary in a role, started on a thread that has done something before.
type process struct {
	role    string
	program string // the test binary
	before  func() error
	attr    *syscall.SysProcAttr
	start   func(*exec.Cmd) error
}

func (p process) run(t *testing.T) account {
	t.Helper()
	if p.program == "" {
		p.program = "/proc/self/exe"
	}
	if p.start == nil {
		p.start = (*exec.Cmd).Start
	}
	cmd := exec.Command(p.program, "-test.v", "an argument")
	cmd.Env = append(os.Environ(), roleVar+"="+p.role)
	cmd.SysProcAttr = p.attr
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	started, stay := make(chan error), make(chan struct{})
	defer close(stay)
	go func() {
		runtime.LockOSThread() // ends with the goroutine
		var err error
		if p.before != nil {
			err = p.before()
		}
		if err == nil {
			err = p.start(cmd)
		}
		started <- err
		<-stay // the parent death signal follows the thread
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	end := time.AfterFunc(patience.For(10*time.Second), func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	end.Stop()
	var a account
	if err == nil {
		err = json.Unmarshal([]byte(out.String()), &a)
	}
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
	}
	if a.PID != cmd.Process.Pid {
		t.Errorf("it is process %d now, and was %d", a.PID, cmd.Process.Pid)
	}
	if !slices.Equal(a.Args, []string{"-test.v", "an argument"}) {
		t.Errorf("its arguments are %q", a.Args)
	}
	return a
}

// may fails the test unless all threads have just these sets.
func (a account) may(t *testing.T, permitted, effective, bounding Set) {
	t.Helper()
	if len(a.Threads) < 3 {
		t.Errorf("only %d threads were looked at", len(a.Threads))
	}
	hex := func(s Set) string { return fmt.Sprintf("%016x", uint64(s)) }
	for _, th := range a.Threads {
		for key, want := range map[string]string{
			"CapPrm": hex(permitted), "CapEff": hex(effective), "CapBnd": hex(bounding), "CapInh": hex(0), "CapAmb": hex(0), "NoNewPrivs": "1",
		} {
			if th[key] != want {
				t.Errorf("%s of a thread is %s, want %s", key, th[key], want)
			}
		}
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: has capabilities to drop")
	}
}

func take(c Capability) func() error {
	return func() error { return unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0) }
}

func TestDropLeavesNoThreadMore(t *testing.T) {
	needRoot(t)
	a := process{role: drops, attr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}}.run(t)
	a.may(t, Daemon(), Daemon(), Daemon())
	if a.ParentDeath != int32(syscall.SIGKILL) {
		t.Errorf("its parent's end brings it signal %d", a.ParentDeath)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if name := filepath.Base(exe); a.Name != name[:min(len(name), 15)] {
		t.Errorf("it is called %s now, and was %s", a.Name, name)
	}
}

// What is not given is no reason not to drop the rest.
func TestDropKeepsWhatThereIs(t *testing.T) {
	needRoot(t)
	less := Daemon() &^ Of(unix.CAP_SYS_NICE)
	process{role: drops, before: take(unix.CAP_SYS_NICE)}.run(t).may(t, less, less, less)
}

// Ambient and inheritable capabilities are what a service manager may hand over.
func TestDropEmptiesWhatIsHandedOn(t *testing.T) {
	needRoot(t)
	process{role: drops, attr: &syscall.SysProcAttr{AmbientCaps: []uintptr{unix.CAP_CHOWN}}}.run(t).may(t, Daemon(), Daemon(), Daemon())
}

// Without CAP_SETPCAP a bounding set stays, and is of no use to any process.
func TestDropWithoutSetpcap(t *testing.T) {
	needRoot(t)
	now, err := current()
	if err != nil {
		t.Fatal(err)
	}
	process{role: drops, before: take(unix.CAP_SETPCAP)}.run(t).may(t, Daemon(), Daemon(), now.bounding&^Of(unix.CAP_SETPCAP))
}

// An upgrade may put another program in the place of one that has just been started.
func TestDropRunsTheSameProgramAgain(t *testing.T) {
	needRoot(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), victim)
	if err := os.WriteFile(path, data, 0o700); err != nil {
		t.Fatal(err)
	}
	process{role: replaced, program: path}.run(t).may(t, Daemon(), Daemon(), Daemon())
}

// A command gets what it is to have, and the process that starts it keeps what it has.
func TestStartGivesNoMore(t *testing.T) {
	needRoot(t)
	before, err := current()
	if err != nil {
		t.Fatal(err)
	}
	start := func(cmd *exec.Cmd) error { return Start(cmd, Guardian()) }
	process{role: says, start: start}.run(t).may(t, Guardian(), Guardian(), Guardian())
	if now, err := current(); err != nil || now != before {
		t.Errorf("the test may do %+v now, %v", now, err)
	}
}

// A daemon that has dropped CAP_SETPCAP starts its guardian: the bounding set stays the daemon's.
func TestStartWithoutSetpcap(t *testing.T) {
	needRoot(t)
	start := func(cmd *exec.Cmd) error {
		if err := limit(Daemon()); err != nil {
			return err
		}
		return startHere(cmd, Guardian())
	}
	process{role: says, start: start}.run(t).may(t, Guardian(), Guardian(), Daemon())
}

// The numbers are those of linux/capability.h, which /proc/PID/status counts its bits by.
func TestSets(t *testing.T) {
	if got := strconv.FormatUint(uint64(Daemon()), 16); got != "c000a81000" {
		t.Errorf("the daemon keeps %s", got)
	}
	if got, want := fmt.Sprint(Guardian().Capabilities()), "[CAP_NET_ADMIN CAP_SYS_PTRACE CAP_SYS_ADMIN CAP_SYS_NICE]"; got != want {
		t.Errorf("the guardian keeps %s, want %s", got, want)
	}
	if Guardian()&^Daemon() != 0 {
		t.Error("the guardian keeps what the daemon does not have")
	}
	// The kernel takes the one for the others: Docker before 23 gives it alone.
	docker := Daemon() &^ Of(unix.CAP_BPF, unix.CAP_PERFMON)
	if missing := Missing(docker); len(missing) != 0 {
		t.Errorf("missing: %+v", missing)
	}
	if got, want := Everyday(docker), Of(unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN); got != want {
		t.Errorf("in force is %s, want %s", got.Capabilities(), want.Capabilities())
	}
	missing := Missing(Daemon() &^ Of(unix.CAP_BPF, unix.CAP_SYS_ADMIN, unix.CAP_SYS_NICE))
	if len(missing) != 3 || missing[0].Without != "" || missing[2].Without == "" {
		t.Errorf("missing: %+v", missing)
	}
	if got, want := Grant(missing).String(), "CapabilityBoundingSet=CAP_BPF CAP_SYS_ADMIN CAP_SYS_NICE in its systemd unit, or docker run --cap-add=BPF --cap-add=SYS_ADMIN --cap-add=SYS_NICE"; got != want {
		t.Errorf("granted by %s, want %s", got, want)
	}
}

// What is raised is in force on one thread for one call, and nothing else is.
func TestWithRaisesOneForOneCall(t *testing.T) {
	needRoot(t)
	a := process{role: lowers}.run(t)
	if a.Linked { // as with the race detector
		a.may(t, Daemon(), Daemon(), Daemon())
		return
	}
	three := Of(unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_NET_ADMIN)
	a.may(t, Daemon(), three, Daemon())
	want := []Set{three, three | Of(unix.CAP_SYS_ADMIN), three | Of(unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE), three | Of(unix.CAP_SYS_ADMIN), three, three}
	if !slices.Equal(a.Raised, want) {
		t.Errorf("in force were %v, want %v", a.Raised, want)
	}
}
