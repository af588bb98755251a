// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
)

// claims tries, in a mount namespace of its own.
func claims(t *testing.T, home *netns.Handle) (c *os.File, err error) {
	t.Helper()
	if derr := home.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		c, err = ClaimNamespace(home)
		return nil
	}); derr != nil {
		t.Fatal(derr)
	}
	return c, err
}

func TestANetworkNamespaceIsClaimedOnce(t *testing.T) {
	b := newBed(t)
	first, err := ClaimNamespace(b.a)
	b.must(err)
	defer first.Close()
	var busy *BusyError
	if _, err := claims(t, b.a); !errors.As(err, &busy) || busy.PID != os.Getpid() || !busy.Elsewhere {
		t.Errorf("claimed by %d, but a second one got %v", os.Getpid(), err)
	}
	if err := Claimed(b.a); !errors.Is(err, ErrBusy) {
		t.Errorf("claimed: %v", err)
	}
	other, err := claims(t, b.b)
	if err != nil {
		t.Errorf("another namespace: %v", err)
	} else {
		b.must(other.Close())
	}
	b.must(first.Close())
	b.must(Claimed(b.a))
	again, err := claims(t, b.a)
	b.must(err)
	b.must(again.Close())
}

// Commands that ask at the same time do not take each other for a daemon, and a daemon waits for them.
func TestAskersDoNotClaim(t *testing.T) {
	b := newBed(t)
	asks, err := lockClaim(b.a, unix.LOCK_SH)
	b.must(err)
	b.must(Claimed(b.a))
	tries, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	b.must(err)
	defer unix.Close(tries)
	_, err = unix.InotifyAddWatch(tries, fmt.Sprintf("/proc/self/fd/%d", asks.Fd()), unix.IN_CLOSE_WRITE)
	b.must(err)
	claimed := make(chan error, 1)
	go func() {
		c, err := ClaimNamespace(b.a)
		if err == nil {
			err = c.Close()
		}
		claimed <- err
	}()
	_, err = unix.Read(tries, make([]byte, unix.SizeofInotifyEvent)) // it has tried, in vain
	b.must(err)
	select {
	case err := <-claimed:
		t.Fatalf("it does not wait: %v", err)
	default:
	}
	b.must(asks.Close())
	b.must(<-claimed)
}

// No other user can take the claim, and so deny it to the daemon.
func TestAClaimIsRootsOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: tries as another user")
	}
	for _, how := range []string{"exec 9<", "exec 9>>"} {
		cmd := exec.Command("/bin/sh", "-c", how+"/sys/"+claimFile)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("%s: another user can open it: %s", how, out)
		}
	}
}
