// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/process"
)

// Spec says how a daemon is started. The zero value of a field means its
// default.
type Spec struct {
	NS      *netns.Handle
	Program string // Program(tb)
	State   string // a new folder
	Config  string // the text of the configuration file; empty: no file
	Env     []string
	UID     int // user and group to run as
	// Before runs on the thread that starts the program, such as to change
	// what it will see.
	Before func() error
}

func (s *Spec) attr() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if s.UID != 0 {
		a.Credential = &syscall.Credential{Uid: uint32(s.UID), Gid: uint32(s.UID)}
	}
	return a
}

// Daemon is "overlane run", as a service manager would run it.
type Daemon struct {
	Spec
	PID int

	tb     testing.TB
	config string // the path of its file
	cmd    *exec.Cmd
	notify *net.UnixConn
	exited chan struct{}
	family chan struct{}
	// stopped is a guardian that sleeps.
	stopped int

	mu  sync.Mutex
	log bytes.Buffer
}

// Launch starts a daemon and does not wait for anything. It ends with the test
// at the latest, and its guardian with it.
func Launch(tb testing.TB, spec Spec) *Daemon {
	tb.Helper()
	if spec.Program == "" {
		spec.Program = Program(tb)
	}
	dir := folder(tb)
	if spec.State == "" {
		spec.State = filepath.Join(dir, "state")
	}
	d := &Daemon{Spec: spec, tb: tb, exited: make(chan struct{}), family: make(chan struct{})}
	args := []string{"run", "--verbose", "--state-dir", spec.State}
	if spec.Config != "" {
		file := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(file, []byte(alone(spec.Config)), 0o600); err != nil {
			tb.Fatal(err)
		}
		args = append(args, "--config", file)
		d.config = file
	}
	var err error
	socket := filepath.Join(dir, "notify")
	if d.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}); err != nil {
		tb.Fatal(err)
	}
	// The daemon and its guardian hold the other end: it is at its end when
	// both are gone.
	family, stderr, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	d.cmd = exec.Command(spec.Program, args...)
	d.cmd.Stderr = stderr
	d.cmd.Env = append(append(os.Environ(), "NOTIFY_SOCKET="+socket), spec.Env...)
	d.cmd.SysProcAttr = spec.attr()
	started := make(chan error, 1)
	go func() {
		defer close(d.exited)
		// The parent death signal follows the thread, not the process.
		err := spec.NS.Do(func() error {
			if spec.Before != nil {
				if err := spec.Before(); err != nil {
					return err
				}
			}
			err := d.cmd.Start()
			if err != nil {
				return err
			}
			started <- nil
			_ = d.cmd.Wait() // its state is looked at later
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	err = <-started
	stderr.Close()
	if err != nil {
		tb.Fatalf("start the daemon: %v", err)
	}
	d.PID = d.cmd.Process.Pid
	go d.read(family)
	tb.Cleanup(d.clean)
	return d
}

// Start starts a daemon and waits until it says that it is ready.
func Start(tb testing.TB, spec Spec) *Daemon {
	tb.Helper()
	d := Launch(tb, spec)
	d.Ready()
	return d
}

func (d *Daemon) read(from *os.File) {
	defer close(d.family)
	defer from.Close()
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		d.mu.Lock()
		d.log.Write(buf[:n])
		d.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Log is what daemon and guardian have said so far.
func (d *Daemon) Log() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.String()
}

// Undrained is whether a log says that flows did not leave their lanes in time, as on a machine with other work.
func Undrained(log string) bool { return strings.Contains(log, "may be overtaken once") }

// Says waits until the log has some words: what a daemon has said comes through a pipe, after what it did.
func (d *Daemon) Says(words string) {
	d.tb.Helper()
	Until(d.tb, "the log says: "+words, func() (bool, string) {
		log := d.Log()
		return strings.Contains(log, words), log
	})
}

// clean ends what is left and, if the test has failed, shows the log.
func (d *Daemon) clean() {
	d.Signal(unix.SIGKILL)
	if d.stopped != 0 {
		_ = unix.Kill(d.stopped, unix.SIGCONT)
	}
	d.GoneBoth()
	d.notify.Close()
	if d.tb.Failed() {
		d.tb.Logf("the daemon with pid %d said:\n%s", d.PID, d.Log())
	}
}

// Ready waits for the daemon's message to its service manager.
func (d *Daemon) Ready() {
	d.tb.Helper()
	said := make(chan error, 1)
	go func() {
		buf := make([]byte, 512)
		d.notify.SetReadDeadline(time.Now().Add(Patience))
		for {
			n, err := d.notify.Read(buf)
			if err != nil || slices.Contains(strings.Split(string(buf[:n]), "\n"), "READY=1") {
				said <- err
				break
			}
		}
		// As a service manager does: a daemon that sends to a full socket waits.
		d.notify.SetReadDeadline(time.Time{})
		for {
			if _, err := d.notify.Read(buf); err != nil {
				return
			}
		}
	}()
	select {
	case err := <-said:
		if err != nil {
			d.tb.Fatalf("the daemon is not ready: %v\n%s", err, d.Log())
		}
	case <-d.exited:
		d.tb.Fatalf("the daemon ended at its start: %s\n%s", d.cmd.ProcessState, d.Log())
	}
}

// Signal sends a signal to the daemon alone.
func (d *Daemon) Signal(s unix.Signal) {
	select {
	case <-d.exited:
	default:
		_ = unix.Kill(d.PID, s) // not waited for yet: the number is still its own
	}
}

// alone leaves out aggregation where a configuration does not speak of it: what GRO has collected
// when it ends may be overtaken.
func alone(config string) string {
	if strings.Contains(config, "aggregate:") {
		return config
	}
	return config + "aggregate: off\n"
}

// Reload gives a daemon that has a configuration file another text of it, and waits
// until it is taken over.
func (d *Daemon) Reload(text string) {
	d.tb.Helper()
	d.reread(alone(text), "configuration read again")
}

// Refuses is Reload with a text that has a mistake.
func (d *Daemon) Refuses(text string) {
	d.tb.Helper()
	d.reread(text, "configuration not taken over")
}

func (d *Daemon) reread(text, outcome string) {
	d.tb.Helper()
	if err := os.WriteFile(d.config, []byte(text), 0o600); err != nil {
		d.tb.Fatal(err)
	}
	before := strings.Count(d.Log(), outcome)
	d.Signal(unix.SIGHUP)
	Until(d.tb, "the log says: "+outcome, func() (bool, string) {
		return strings.Count(d.Log(), outcome) > before, d.Log()
	})
}

// Exited waits for the end of the daemon and returns how it ended.
func (d *Daemon) Exited() *os.ProcessState {
	d.tb.Helper()
	d.wait("the daemon ends", d.exited)
	return d.cmd.ProcessState
}

// GoneBoth waits for the end of the daemon and of its guardian.
func (d *Daemon) GoneBoth() {
	d.tb.Helper()
	d.wait("daemon and guardian end", d.family)
	d.wait("the daemon ends", d.exited)
}

func (d *Daemon) wait(what string, c <-chan struct{}) {
	d.tb.Helper()
	select {
	case <-c:
	case <-time.After(Patience):
		// A reason to end the test, but not from a clean-up.
		d.tb.Errorf("not within %s: %s\n%s\n%s", Patience, what, process.Where(d.State), d.Log())
	}
}

// Guardian returns the process number of the guardian.
func (d *Daemon) Guardian() int {
	d.tb.Helper()
	pid := childOf(d.PID)
	if pid == 0 {
		d.tb.Fatalf("the daemon with pid %d has no guardian\n%s", d.PID, d.Log())
	}
	return pid
}

// StopGuardian makes the guardian sleep, so that it misses its daemon's end.
// The daemon must be ready: it waits for its guardian's first word.
func (d *Daemon) StopGuardian() {
	d.tb.Helper()
	d.stopped = d.Guardian()
	if err := process.Stop(d.stopped); err != nil {
		d.tb.Fatalf("stop the guardian: %v", err)
	}
}

// KillStopped kills the guardian that was stopped, if one was.
func (d *Daemon) KillStopped() {
	d.tb.Helper()
	if d.stopped == 0 {
		return
	}
	if err := unix.Kill(d.stopped, unix.SIGKILL); err != nil { // stopped: the number is still its own
		d.tb.Fatalf("kill the guardian: %v", err)
	}
	d.stopped = 0
}

func childOf(parent int) int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// PID (NAME) STATE PPID
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(parent) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
				return pid
			}
		}
	}
	return 0
}

// Result is what became of a short command.
type Result struct {
	Code     int
	Out, Err string
}

func (r Result) String() string { return fmt.Sprintf("exit code %d\n%s%s", r.Code, r.Out, r.Err) }

// Run runs a command in a namespace to its end.
func Run(tb testing.TB, spec Spec, args ...string) Result {
	tb.Helper()
	if spec.Program == "" {
		spec.Program = Program(tb)
	}
	cmd := exec.Command(spec.Program, args...)
	cmd.Env = append(os.Environ(), spec.Env...)
	cmd.SysProcAttr = spec.attr()
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	ended := make(chan error, 1)
	go func() {
		ended <- spec.NS.Do(func() error {
			if spec.Before != nil {
				if err := spec.Before(); err != nil {
					return err
				}
			}
			if err := cmd.Start(); err != nil {
				return err
			}
			timer := time.AfterFunc(Patience, func() { _ = cmd.Process.Kill() })
			defer timer.Stop()
			_ = cmd.Wait() // its state is looked at below
			return nil
		})
	}()
	if err := <-ended; err != nil {
		tb.Fatalf("run %s: %v", strings.Join(args, " "), err)
	}
	return Result{Code: cmd.ProcessState.ExitCode(), Out: out.String(), Err: errs.String()}
}

// Verb runs one of the program's other verbs beside the daemon.
func (d *Daemon) Verb(args ...string) Result {
	d.tb.Helper()
	spec := d.Spec
	spec.Env, spec.Before = nil, nil
	return Run(d.tb, spec, append(args, "--state-dir", d.State)...)
}

// Status asks the daemon by the program, as a user would.
func (d *Daemon) Status() control.Status {
	d.tb.Helper()
	r := d.Verb("status", "--json")
	if r.Code != 0 {
		d.tb.Fatalf("overlane status: %s", r)
	}
	var st control.Status
	if err := json.Unmarshal([]byte(r.Out), &st); err != nil {
		d.tb.Fatalf("overlane status: %v in %s", err, r.Out)
	}
	return st
}

// Acting waits until the pipeline steers packets, and returns the status then.
func (d *Daemon) Acting() control.Status {
	d.tb.Helper()
	if !d.ActsOrEnds() {
		d.tb.Fatalf("the daemon ended: %s\n%s", d.cmd.ProcessState, d.Log())
	}
	return d.Status()
}

// ActsOrEnds waits until the pipeline steers packets, and reports false when
// the daemon has ended instead.
func (d *Daemon) ActsOrEnds() (acts bool) {
	d.tb.Helper()
	Until(d.tb, "the pipeline steers packets", func() (bool, string) {
		select {
		case <-d.exited:
			return true, ""
		default:
		}
		st, err := d.Peek()
		if err != nil {
			return false, err.Error() + "\n" + d.Log()
		}
		acts = len(st.Lanes) > 0 && st.Counters.SteeredPackets > 0
		return acts, fmt.Sprintf("%+v\n%s", st, d.Log())
	})
	return acts
}

// Peek asks for the status at less cost than by the program.
func (d *Daemon) Peek() (control.Status, error) {
	c, err := control.Dial(filepath.Join(d.Folder(), "control.sock"))
	if err != nil {
		return control.Status{}, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	return c.Status(ctx)
}

// Folder is where the daemon's lock, journal and socket are.
func (d *Daemon) Folder() string {
	d.tb.Helper()
	cookie, err := d.NS.Cookie()
	if err != nil {
		d.tb.Fatal(err)
	}
	return filepath.Join(d.State, strconv.FormatUint(cookie, 10))
}

// NothingLeft asserts that the state directory names nothing to restore and
// no daemon to ask. Of one that was killed, or crashed, its socket and empty
// files may stay.
func (d *Daemon) NothingLeft() {
	d.tb.Helper()
	entries, err := os.ReadDir(d.Folder())
	if err != nil && !os.IsNotExist(err) {
		d.tb.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			d.tb.Fatal(err)
		}
		switch code := d.cmd.ProcessState.ExitCode(); {
		case e.Name() == "lock" && info.Size() == 0:
		case code != 0 && code != 1 && (info.Size() == 0 || e.Name() == "control.sock"):
		default:
			d.tb.Errorf("%s is left in the state directory, with %d bytes", e.Name(), info.Size())
		}
	}
}

// Runs tells that the daemon has not ended.
func (d *Daemon) Runs() bool {
	select {
	case <-d.exited:
		return false
	default:
		return true
	}
}
