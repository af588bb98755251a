// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/test/process"
	"github.com/overlane/overlane/test/speed"
)

// eachFault runs the script with a SIGKILL at every fault point in turn, until one run passes none; in a short run
// at every third, from one that chance chooses.
func eachFault(b *bed, s script, after func(d *daemon)) {
	b.t.Helper()
	const tooMany = 200
	killed, turn := 0, speed.Every(b.t, 3)
	for n := 1; n < tooMany; n++ {
		if !turn() {
			continue
		}
		s.Fault = n
		d := b.start(s)
		if d.ready {
			d.stdin.Close()
		}
		said := d.wait()
		if status := d.cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != unix.SIGKILL {
			if !d.cmd.ProcessState.Success() {
				b.t.Fatalf("fault %d: %s\n%s", n, d.cmd.ProcessState, said)
			}
			if n < 20 {
				b.t.Fatalf("only %d fault points were passed", n-1)
			}
			b.t.Logf("killed at %d points", killed)
			return
		}
		killed++
		after(d)
		if b.t.Failed() {
			b.t.Fatalf("killed at point %d; %s", n, said)
		}
	}
	b.t.Fatalf("more than %d fault points", tooMany)
}

func TestGuardianRestoresAfterKillAtAnyPoint(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	eachFault(b, script{Plans: [][]plan.Step{b.steps(), b.other()}, Guardian: true}, func(*daemon) {
		b.wantSnapshot(before)
		b.wantNoJournal()
	})
}

func TestNextOwnerRestoresAfterKillOfBothAtAnyPoint(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	eachFault(b, script{Plans: [][]plan.Step{b.steps(), b.other()}}, func(*daemon) {
		f := NewFinder()
		defer f.Close()
		l, err := b.open().Lock()
		b.must(err)
		_, err = l.Restore(f)
		b.must(err)
		b.must(l.Unlock())
		b.wantSnapshot(before)
		b.wantNoJournal()
	})
}

// The next daemon finds the other's journal, restores, and applies its own.
func TestNextDaemonStartsFromTheFirstValues(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	d := b.start(script{Plans: [][]plan.Step{b.steps()}})
	d.kill()
	d.wait()
	d = b.start(script{Plans: [][]plan.Step{b.other()}, Guardian: true})
	if !d.ready {
		t.Fatal(d.wait())
	}
	if !d.leave().Success() {
		t.Fatal(d.cmd.ProcessState)
	}
	b.wantSnapshot(before)
	b.wantNoJournal()
}

func TestKillOfGuardianAndDaemonLeavesTheJournal(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	d := b.start(script{Plans: [][]plan.Step{b.steps()}, Guardian: true})
	b.must(kill(d.guardian, unix.SIGKILL))
	d.kill()
	d.wait()
	l := b.lock()
	f := NewFinder()
	defer f.Close()
	rep, err := l.Restore(f)
	b.must(err)
	wantOutcomes(t, rep, Restored, len(b.steps()))
	b.wantSnapshot(before)
}

func TestGuardianOutlivesSignalsMeantForTheDaemon(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	d := b.start(script{Plans: [][]plan.Step{b.steps()}, Guardian: true})
	if sid, err := unix.Getsid(d.guardian); err != nil || sid != d.guardian {
		t.Errorf("guardian %d is in session %d, %v", d.guardian, sid, err)
	}
	for _, s := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT} {
		b.must(kill(d.guardian, s))
	}
	killed := time.Now()
	d.kill()
	said := d.wait()
	t.Logf("restored %v after the kill", time.Since(killed))
	if strings.Count(said, "restored") != len(b.steps()) {
		t.Errorf("the guardian said: %s", said)
	}
	b.wantSnapshot(before)
	b.wantNoJournal()
}

func TestGuardianHoldsNothingOfTheDaemons(t *testing.T) {
	b := newBed(t)
	d := b.start(script{Plans: [][]plan.Step{b.steps()}, Guardian: true})
	dir := "/proc/" + strconv.Itoa(d.guardian) + "/fd"
	fds, err := os.ReadDir(dir)
	b.must(err)
	for _, fd := range fds {
		link, err := os.Readlink(dir + "/" + fd.Name())
		b.must(err)
		n, _ := strconv.Atoi(fd.Name())
		switch {
		case n <= 1 && link == "/dev/null", n == 2:
		case n == GuardianFD && strings.HasPrefix(link, "socket:"):
		case strings.HasPrefix(link, b.state): // its folder
		case strings.HasPrefix(link, "anon_inode:"), strings.HasPrefix(link, "pidfd:"): // Go's poller, the daemon
		case strings.HasPrefix(link, "/sys/fs/cgroup/"): // Go's GOMAXPROCS
		default:
			t.Errorf("descriptor %s of the guardian is %s", fd.Name(), link)
		}
	}
	if cwd, err := os.Readlink("/proc/" + strconv.Itoa(d.guardian) + "/cwd"); err != nil || cwd != "/" {
		t.Errorf("guardian stands in %s, %v", cwd, err)
	}
	if t.Failed() {
		return
	}
	// Only the daemon held the other end of this one.
	b.stopGuardian(d)
	d.kill()
	if _, err := io.ReadAll(d.lingerer); err != nil {
		t.Error(err)
	}
	b.must(kill(d.guardian, unix.SIGCONT))
	d.wait()
}

// A daemon that is started again at once must not take the guardian that is
// restoring for another daemon.
func TestLockWaitsForARestoringGuardian(t *testing.T) {
	b := newBed(t)
	guardian, err := b.open().lock(restoring)
	b.must(err)
	second := b.open()
	tried := make(chan bool)
	once := sync.OnceFunc(func() { close(tried) })
	fault = func(point string) {
		if point == "lock:waits" {
			once()
		}
	}
	t.Cleanup(func() { fault = nil })
	locked := make(chan error)
	go func() {
		l, err := second.Lock()
		if err == nil {
			err = l.Unlock()
		}
		locked <- err
	}()
	select {
	case <-tried:
	case err := <-locked:
		t.Fatalf("Lock did not wait: %v", err)
	}
	b.must(guardian.Unlock())
	b.must(<-locked)
}

// guardian is one of this process, which holds the lock.
func (b *bed) guardian() (*Locked, *Guardian) {
	b.t.Helper()
	l := b.lock()
	g, err := l.StartGuardian([]string{"guardian"})
	b.must(err)
	return l, g
}

// A released guardian restores nothing, not even what it could.
func TestReleasedGuardianDoesNothing(t *testing.T) {
	b := newBed(t)
	l, g := b.guardian()
	_, err := l.Do(b, b.steps())
	b.must(err)
	after := b.snapshot()
	b.must(g.Release())
	b.wantSnapshot(after)
	if n := len(l.Entries()); n != len(b.steps()) {
		t.Errorf("%d entries", n)
	}
	_, err = l.Restore(b)
	b.must(err)
}

func TestDeathOfTheGuardianIsSeen(t *testing.T) {
	b := newBed(t)
	_, g := b.guardian()
	b.must(kill(g.PID(), unix.SIGKILL))
	<-g.Done()
	if err := g.Release(); err == nil {
		t.Error("a guardian that was killed was released")
	}
}

func TestGuardianThatCannotStandIsAnError(t *testing.T) {
	b := newBed(t)
	l := b.lock()
	if _, err := l.StartGuardian([]string{"-test.run=^$"}); err == nil {
		t.Fatal("a program that is no guardian was taken for one")
	}
}

func TestCleanExitRestores(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	d := b.start(script{Plans: [][]plan.Step{b.steps(), b.other()}, Guardian: true})
	if !d.ready || !d.leave().Success() {
		t.Fatal(d.cmd.ProcessState)
	}
	b.wantSnapshot(before)
	b.wantNoJournal()
}

func TestForeignChangeSurvivesTheGuardian(t *testing.T) {
	b := newBed(t)
	want := b.snapshot()
	d := b.start(script{Plans: [][]plan.Step{b.steps()}, Guardian: true})
	b.set(b.a, "va/queues/rx-0/rps_cpus", "3")
	want["a va queues/rx-0/rps_cpus"] = "3"
	d.kill()
	if said := d.wait(); !strings.Contains(said, "changed by another program from 2 to 3") {
		t.Errorf("the guardian said: %s", said)
	}
	b.wantSnapshot(want)
	b.wantNoJournal()
}

func TestSecondDaemonIsToldOfTheFirst(t *testing.T) {
	b := newBed(t)
	d := b.start(script{Plans: [][]plan.Step{b.steps()}, Guardian: true})
	after := b.snapshot()
	_, err := b.open().Lock()
	var busy *BusyError
	if !errors.As(err, &busy) || !errors.Is(err, ErrBusy) || busy.PID != d.cmd.Process.Pid {
		t.Errorf("%v, want the pid %d", err, d.cmd.Process.Pid)
	}
	second := b.start(script{Plans: [][]plan.Step{b.other()}, Guardian: true})
	if said := second.wait(); second.ready || !strings.Contains(said, strconv.Itoa(d.cmd.Process.Pid)) {
		t.Errorf("the second daemon said: %s", said)
	}
	b.wantSnapshot(after)

	// Another namespace is not locked.
	other, err := Open(b.state, b.cookie[b.b])
	b.must(err)
	defer other.Close()
	l, err := other.Lock()
	b.must(err)
	b.must(l.Unlock())
}

// dead is a daemon that has died while its guardian is stopped.
func (b *bed) dead() *daemon {
	b.t.Helper()
	d := b.start(script{Plans: [][]plan.Step{b.steps()}, Guardian: true})
	b.stopGuardian(d)
	d.kill()
	_ = d.cmd.Wait()
	return d
}

// stopGuardian stops a daemon's guardian, for the test's time at most: its end is waited for.
func (b *bed) stopGuardian(d *daemon) {
	b.t.Helper()
	b.t.Cleanup(func() { _ = kill(d.guardian, unix.SIGCONT) })
	b.must(process.Stop(d.guardian))
}

// The process that holds the lock restores; the guardian must neither wait for it nor disturb it.
func TestGuardianLeavesTheLockToAFasterOwner(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	d := b.dead()
	l, err := b.open().lock(restoring) // by another guardian, say
	b.must(err)
	b.must(kill(d.guardian, unix.SIGCONT))
	if said := d.wait(); !strings.Contains(said, "left to the new holder") {
		t.Errorf("the guardian said: %s", said)
	}
	_, err = l.Restore(b)
	b.must(err)
	b.must(l.Unlock())
	b.wantSnapshot(before)
}

// The guardian of a daemon that has died comes first, however fast another one is. One that
// does not come is killed: its daemon's programs are not to stay.
func TestAGuardianThatIsStoppedIsKilledByTheNextOwner(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	d := b.dead()
	_, err := b.open().lock("")
	var busy *BusyError
	if !errors.As(err, &busy) || busy.PID != d.guardian || !busy.Restoring {
		t.Errorf("before it has restored: %v", err)
	}
	l := b.lock()
	if said := d.wait(); said != "" { // to its end
		t.Errorf("the guardian said: %s", said)
	}
	_, err = l.Restore(b)
	b.must(err)
	b.wantSnapshot(before)
}

// kill sends a signal to a process. Of none, which has the number 0, kill(2) would take the caller's group for it.
func kill(pid int, s unix.Signal) error {
	if pid <= 1 {
		return fmt.Errorf("there is no process to be sent %s: %d", s, pid)
	}
	return unix.Kill(pid, s)
}
