// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// bed is a host in a network namespace of its own, with a NIC and a tunnel.
type bed struct {
	*Host
	t    *testing.T
	home *netns.Handle
}

func newBed(t *testing.T) *bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: creates network namespaces and writes their settings")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip from iproute2")
	}
	b := &bed{t: t}
	home, err := netns.New()
	b.must(err)
	t.Cleanup(func() { home.Close() })
	b.home = home
	b.ip(`link add nic0 type veth peer name wire
		link set wire up
		link set nic0 up
		addr add 10.1.0.1/24 dev nic0
		link add vx0 type vxlan id 42 dstport 4789 local 10.1.0.1 dev nic0
		link set vx0 up`)
	cookie, err := home.Cookie()
	b.must(err)
	dir, err := apply.Open(t.TempDir(), cookie)
	b.must(err)
	t.Cleanup(func() { dir.Close() })
	locked, err := dir.Lock()
	b.must(err)
	t.Cleanup(func() { locked.Unlock() })
	scanner, err := node.NewScanner(node.Options{Home: home})
	b.must(err)
	t.Cleanup(func() { scanner.Close() })
	log := slog.New(slog.DiscardHandler)
	b.Host = New(log, NewChanges(log, cookie), locked, nil, scanner)
	b.must(b.Scan(context.Background()))
	return b
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) ip(script string) {
	b.t.Helper()
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(script)
	var said []byte
	err := b.home.Do(func() (err error) { said, err = cmd.CombinedOutput(); return err })
	if err != nil {
		b.t.Fatalf("%v\n%s", err, said)
	}
}

// tunnel is the only one.
func (b *bed) tunnel() node.Dev {
	b.t.Helper()
	all := b.Snapshot().Tunnels
	if len(all) != 1 {
		b.t.Fatalf("tunnels: %+v", all)
	}
	return all[0].Dev
}

func (b *bed) setMask(dev node.Dev) plan.Setting {
	b.t.Helper()
	mask := plan.RPSMask(plan.Target(dev), 0)
	refused, err := b.CarryOut([]plan.Step{{Setting: mask, By: plan.ByPipeline, Was: "0", First: "0", Want: "1"}})
	if err != nil || len(refused) > 0 || len(b.Entries()) != 1 {
		b.t.Fatalf("refused %v, %v, journal %+v", refused, err, b.Entries())
	}
	return mask
}

func (b *bed) mask(name string) string {
	b.t.Helper()
	root, err := b.home.Sysfs()
	b.must(err)
	defer root.Close()
	v, err := root.ReadFile("class/net/" + name + "/queues/rx-0/rps_cpus")
	b.must(err)
	return strings.Trim(string(v), "0,\n")
}

func TestARenamedDeviceIsStillThereAndOurs(t *testing.T) {
	b := newBed(t)
	b.setMask(b.tunnel())
	b.ip("link set vx0 name vx1")
	if b.Gone(b.Entries()[0]) {
		t.Error("a device that is renamed counts as gone")
	}
	b.must(b.Scan(context.Background()))
	if _, ours := b.Owned(plan.ByPipeline)[plan.RPSMask(plan.Target(b.tunnel()), 0)]; !ours || b.tunnel().Name != "vx1" {
		t.Errorf("the mask of %s is not ours: journal %+v", b.tunnel(), b.Entries())
	}
	b.ip("link set vx1 name vx2\nlink add vx1 type bridge")
	rep, err := b.Restore(plan.ByPipeline, nil)
	if err != nil || rep.Count(apply.Restored) != 1 || b.mask("vx2") != "" {
		t.Errorf("%+v, %v; the mask is %q", rep, err, b.mask("vx2"))
	}
}

func TestADeviceThatIsDeletedIsGone(t *testing.T) {
	b := newBed(t)
	b.setMask(b.tunnel())
	e := b.Entries()[0]
	if b.Gone(e) {
		t.Error("a device that is there counts as gone")
	}
	b.ip("link del vx0\nlink add vx0 type bridge")
	if !b.Gone(e) {
		t.Error("a device whose name another one has got is not gone")
	}
	e.Kept = "test"
	if !b.Gone(e) {
		t.Error("an entry that was kept stays when its device has gone")
	}
	e.NetnsCookie = 1 << 62 // which no namespace has
	if b.Gone(e) {
		t.Error("an entry that was kept is forgotten though its namespace may exist")
	}
	b.must(b.Forget(b.Gone))
	if len(b.Entries()) > 0 {
		t.Errorf("journal %+v", b.Entries())
	}
}

// needless needs no setting.
func needless(plan.Setting) bool { return false }

// What a mechanism needs no more, as of a device that has left the overlay and lives on, is taken back, whatever the
// device is called; of one that is gone it is forgotten.
func TestWhatIsNeededNoMoreIsTakenBack(t *testing.T) {
	b := newBed(t)
	mask := b.setMask(b.tunnel())
	rep, err := b.RestoreUnneeded(plan.ByPipeline, func(s plan.Setting) bool { return s == mask })
	if err != nil || len(rep.Results) > 0 || b.mask("vx0") != "1" {
		t.Errorf("of one that is needed: %+v, %v", rep, err)
	}
	if rep, err = b.RestoreUnneeded(plan.ByAggregation, needless); err != nil || len(rep.Results) > 0 || b.mask("vx0") != "1" {
		t.Errorf("of another mechanism: %+v, %v", rep, err)
	}
	b.ip("link set vx0 name vx1\nlink add vx0 type bridge")
	if rep, err = b.RestoreUnneeded(plan.ByPipeline, needless); err != nil || rep.Count(apply.Restored) != 1 || b.mask("vx1") != "" || len(b.Entries()) > 0 {
		t.Errorf("%+v, %v, mask %q, journal %+v", rep, err, b.mask("vx1"), b.Entries())
	}
	b.must(b.Scan(context.Background()))
	b.setMask(b.tunnel())
	b.ip("link del vx1")
	if rep, err = b.RestoreUnneeded(plan.ByPipeline, needless); err != nil || len(rep.Results) > 0 || len(b.Entries()) > 0 {
		t.Errorf("of one that is gone: %+v, %v, journal %+v", rep, err, b.Entries())
	}
}

// blind finds no namespace, and cannot tell whether it exists.
type blind struct{}

func (blind) ByCookie(uint64) (*netns.Handle, error) { return nil, errors.New("not seen") }

// What was kept of a namespace that no scan sees holds up no decision: neither is its end waited for, nor is it
// searched for. The end of the daemon does that.
func TestWhatWasKeptOfAnUnseenNamespaceWaitsForTheEnd(t *testing.T) {
	b := newBed(t)
	unseen, err := netns.New() // only a search of the machine finds it, by this process's descriptor
	b.must(err)
	defer unseen.Close()
	cookie, err := unseen.Cookie()
	b.must(err)
	lo := plan.RPSMask(plan.Target{NetnsCookie: cookie, Ifindex: 1, Name: "lo"}, 0)
	finder := apply.NewFinder()
	defer finder.Close()
	rep, err := b.locked.Do(finder, []plan.Step{{Setting: lo, By: plan.ByPipeline, Was: "0", First: "0", Want: "1"}})
	if err != nil || rep.Count(apply.Applied) != 1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	if rep, err = b.locked.Restore(blind{}); err != nil || rep.Count(apply.Kept) != 1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	synctest.Test(t, func(t *testing.T) { // time goes by in waiting only
		began := time.Now()
		err := b.forgetEnding(func(apply.Entry) bool { return true })
		if waited := time.Since(began); err != nil || waited > 0 {
			t.Errorf("its end was waited for, for %s: %v", waited, err)
		}
	})
	rep, err = b.Restore(plan.ByPipeline, nil)
	if err != nil || len(rep.Results) > 0 || len(b.Entries()) != 1 {
		t.Errorf("in mid-run: %+v, %v, journal %+v", rep, err, b.Entries())
	}
	if rep, err = b.RestoreRest(rep); err != nil || rep.Count(apply.Restored) != 1 || len(b.Entries()) > 0 {
		t.Errorf("at the end: %+v, %v, journal %+v", rep, err, b.Entries())
	}
}

// The loop does not search all threads and descriptors of the machine for a pod that has gone since it was planned.
func TestANamespaceThatNoScanHasSeenIsPassedOver(t *testing.T) {
	b := newBed(t)
	unseen, err := netns.New() // nothing but this process's descriptor leads there
	b.must(err)
	defer unseen.Close()
	cookie, err := unseen.Cookie()
	b.must(err)
	lo := plan.RPSMask(plan.Target{NetnsCookie: cookie, Ifindex: 1, Name: "lo"}, 0)
	refused, err := b.CarryOut([]plan.Step{{Setting: lo, By: plan.ByPipeline, Was: "0", First: "0", Want: "1"}})
	if err != nil || len(refused) > 0 || len(b.Entries()) > 0 {
		t.Errorf("refused %v, %v, journal %+v", refused, err, b.Entries())
	}
}

func TestANamespaceThatCannotBeOpenedKeepsItsEntries(t *testing.T) {
	b := newBed(t)
	other, err := netns.New()
	b.must(err)
	cookie, err := other.Cookie()
	b.must(err)
	place, cover := filepath.Join(t.TempDir(), "other"), filepath.Join(t.TempDir(), "cover")
	b.must(errors.Join(os.WriteFile(place, nil, 0o600), os.WriteFile(cover, nil, 0o600)))
	b.must(unix.Mount(fmt.Sprintf("/proc/self/fd/%d", other.FD()), place, "", unix.MS_BIND, ""))
	t.Cleanup(func() { unix.Unmount(place, unix.MNT_DETACH) })
	b.must(other.Close())
	b.must(b.Scan(context.Background()))
	b.setMask(node.Dev{NetnsCookie: cookie, Ifindex: 1, Name: "lo"})
	b.must(unix.Mount(cover, place, "", unix.MS_BIND, ""))
	uncover := sync.OnceFunc(func() { unix.Unmount(place, unix.MNT_DETACH) })
	t.Cleanup(uncover)
	for range 2 {
		b.must(b.Scan(context.Background()))
		b.must(b.Forget(b.Gone))
		if rep, err := b.RestoreUnneeded(plan.ByPipeline, needless); err != nil || len(rep.Results) > 0 {
			t.Errorf("%+v, %v", rep, err)
		}
		if len(b.Entries()) != 1 {
			t.Fatal("the entry of a namespace under another mount is forgotten")
		}
	}
	uncover()
	rep, err := b.Restore(plan.ByPipeline, nil)
	if err != nil || rep.Count(apply.Restored) != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
}
