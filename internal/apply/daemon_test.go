// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/plan"
)

// TestMain makes the test binary its own daemon and guardian.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "guardian":
			exit(guardianMain(os.Args[2:]))
		case "daemon":
			exit(daemonMain(os.Args[2]))
		case "hide":
			exit(hideMain(os.Args[2], os.Args[3]))
		}
	}
	os.Exit(m.Run())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func guardianMain(args []string) error {
	fs := flag.NewFlagSet("guardian", flag.ContinueOnError)
	state := fs.String("state-dir", "", "")
	cookie := fs.Uint64("netns-cookie", 0, "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	return RunGuardian(*state, *cookie, nil, slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

// script is what a test daemon does: restore, apply the plans, say so, wait
// for the end of its input, restore and leave.
type script struct {
	State    string
	Cookie   uint64
	Plans    [][]plan.Step
	Guardian bool
	// Fault, if not 0, is the fault point at which it kills itself.
	Fault int
}

func daemonMain(arg string) error {
	var s script
	if err := json.Unmarshal([]byte(arg), &s); err != nil {
		return err
	}
	passed := 0
	fault = func(string) {
		if passed++; passed == s.Fault {
			unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	d, err := Open(s.State, s.Cookie)
	if err != nil {
		return err
	}
	l, err := d.Lock()
	if err != nil {
		return err
	}
	f := NewFinder()
	defer f.Close()
	if _, err := l.Restore(f); err != nil {
		return err
	}
	var g *Guardian
	pid := 0
	if s.Guardian {
		if g, err = l.StartGuardian([]string{"guardian"}); err != nil {
			return err
		}
		pid = g.PID()
	}
	for _, steps := range s.Plans {
		if _, err := l.Do(f, steps); err != nil {
			return err
		}
	}
	fmt.Println("ready", pid)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	if _, err := l.Restore(f); err != nil {
		return err
	}
	if g != nil {
		err = g.Release()
	}
	return errors.Join(err, l.Unlock())
}

// daemon is a running test daemon.
type daemon struct {
	t        *testing.T
	cmd      *exec.Cmd
	stdin    io.WriteCloser
	ready    bool
	guardian int
	// family is at its end when daemon and guardian are gone: both hold
	// the other end of it as their stderr.
	family *os.File
	// lingerer is a descriptor that the daemon inherits and the guardian
	// must not.
	lingerer *os.File
}

// start starts a daemon and waits until it is ready or dead.
func (b *bed) start(s script) *daemon {
	b.t.Helper()
	s.State, s.Cookie = b.state, b.cookie[b.a]
	arg, err := json.Marshal(s)
	b.must(err)
	family, stderr, err := os.Pipe()
	b.must(err)
	lingerer, w, err := os.Pipe()
	b.must(err)
	d := &daemon{t: b.t, cmd: exec.Command("/proc/self/exe", "daemon", string(arg)), family: family, lingerer: lingerer}
	d.cmd.Stderr = stderr
	d.cmd.ExtraFiles = []*os.File{w, w} // the guardian's own takes the place of 3
	d.stdin, err = d.cmd.StdinPipe()
	b.must(err)
	out, err := d.cmd.StdoutPipe()
	b.must(err)
	b.must(d.cmd.Start())
	stderr.Close()
	w.Close()
	b.t.Cleanup(func() {
		d.kill()
		d.wait()
		family.Close()
		lingerer.Close()
	})
	line, _ := bufio.NewReader(out).ReadString('\n')
	word, pid, ok := strings.Cut(strings.TrimSpace(line), " ")
	if ok && word == "ready" {
		d.ready = true
		d.guardian, err = strconv.Atoi(pid)
		b.must(err)
	}
	return d
}

func (d *daemon) kill() { _ = d.cmd.Process.Kill() }

// wait waits for the end of daemon and guardian and returns what they said.
func (d *daemon) wait() string {
	said, err := io.ReadAll(d.family)
	if err != nil && !errors.Is(err, os.ErrClosed) {
		d.t.Error(err)
	}
	_ = d.cmd.Wait() // killed
	return string(said)
}

// leave makes the daemon restore and end, and returns its state.
func (d *daemon) leave() *os.ProcessState {
	d.t.Helper()
	d.stdin.Close()
	if said := d.wait(); said != "" {
		d.t.Log(said)
	}
	return d.cmd.ProcessState
}

// startThread starts a process that does nothing and has a scheduling.
func startThread(t *testing.T) (plan.ThreadID, func()) {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := func() { in.Close(); _ = cmd.Wait() }
	t.Cleanup(stop)
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name has none
	start, err := strconv.ParseUint(strings.Fields(rest)[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return plan.ThreadID{PID: cmd.Process.Pid, Start: start, Comm: "cat"}, stop
}
