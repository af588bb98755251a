// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/test/process"
)

// pipe is held by its writing end, and tells from the other one whether it still is.
type pipe struct{ r *os.File }

func (b *bed) hold(g *Guardian) (pipe, func() error) {
	b.t.Helper()
	r, w, err := os.Pipe()
	b.must(err)
	letGo, err := g.Hold("pipe", int(w.Fd()))
	b.must(err)
	b.must(w.Close())
	b.t.Cleanup(func() { r.Close() })
	return pipe{r}, letGo
}

func (p pipe) held(t *testing.T) bool {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(p.r.Fd())}}
	if _, err := unix.Poll(fds, 0); err != nil {
		t.Fatal(err)
	}
	return fds[0].Revents&unix.POLLHUP == 0
}

// What a guardian was told to let go of it has let go of when that returns, and of nothing else.
func TestGuardianHoldsUntilItIsToldToLetGo(t *testing.T) {
	b := newBed(t)
	_, g := b.guardian()
	first, letGo := b.hold(g)
	second, _ := b.hold(g)
	third, last := b.hold(g)
	for _, p := range []pipe{first, second, third} {
		if !p.held(t) {
			t.Fatal("not held")
		}
	}
	b.must(letGo())
	if first.held(t) || !second.held(t) || !third.held(t) {
		t.Errorf("of three it holds %t %t %t, told to let go of the first", first.held(t), second.held(t), third.held(t))
	}
	b.must(letGo()) // it is not there any more
	b.must(last())
	if !second.held(t) || third.held(t) {
		t.Errorf("it holds the second: %t, the third: %t", second.held(t), third.held(t))
	}
	b.must(g.Release())
	if second.held(t) {
		t.Error("it is gone, and something is held")
	}
}

// A daemon does not wait for ever for a guardian that a signal has stopped: it ends it, and with it
// what it holds.
func TestAGuardianThatDoesNotAnswerIsKilled(t *testing.T) {
	b := newBed(t)
	_, g := b.guardian()
	b.must(g.limit(100 * time.Millisecond))
	p, letGo := b.hold(g)
	b.must(process.Stop(g.PID()))
	b.must(letGo())
	<-g.Done()
	if p.held(t) {
		t.Error("it is gone, and something is held")
	}
}

// A guardian that has died holds nothing.
func TestNothingIsToBeLetGoOfByADeadGuardian(t *testing.T) {
	b := newBed(t)
	_, g := b.guardian()
	p, letGo := b.hold(g)
	b.must(kill(g.PID(), unix.SIGKILL))
	<-g.Done()
	if p.held(t) {
		t.Error("it is gone, and something is held")
	}
	b.must(letGo())
	if _, err := g.Hold("more", 0); err == nil {
		t.Error("a dead guardian took something")
	}
}
