// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
)

// ns is a namespace of a test.
type ns struct {
	*netns.Handle
	cookie uint64
	proc   *exec.Cmd // holds it, if nothing else should
}

// need skips a test that this machine cannot run.
func need(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: creates network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip from iproute2")
	}
}

// named creates a namespace with a name in the test's own directory.
func named(t testing.TB, dir, name string) *ns {
	t.Helper()
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	mount(t, h, filepath.Join(dir, name))
	return wrap(t, h)
}

func mount(t testing.TB, h *netns.Handle, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", h.FD()), path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unname(path) })
}

func unname(path string) {
	unix.Unmount(path, unix.MNT_DETACH)
	os.Remove(path)
}

// held creates a namespace that only a process is in. The handle of the result
// is the test's; drop lets go of it.
func held(t testing.TB) *ns {
	t.Helper()
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	n := wrap(t, h)
	n.proc = exec.Command("sleep", "600")
	if err := h.Do(n.proc.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.kill(); h.Close() })
	return n
}

// opened creates a namespace that nothing but a descriptor of another process
// holds.
func opened(t testing.TB) *ns {
	t.Helper()
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	n := wrap(t, h)
	f, err := os.Open(n.ref())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n.proc = exec.Command("sleep", "600")
	n.proc.ExtraFiles = []*os.File{f}
	if err := n.proc.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.kill(); h.Close() })
	return n
}

func wrap(t testing.TB, h *netns.Handle) *ns {
	t.Helper()
	c, err := h.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	return &ns{Handle: h, cookie: c}
}

// kill ends the process that holds the namespace.
func (n *ns) kill() {
	if n.proc != nil {
		n.proc.Process.Kill()
		n.proc.Wait()
		n.proc = nil
	}
}

// ref is a path that ip(8) takes for the namespace.
func (n *ns) ref() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.FD()) }

// ip runs ip(8) commands in the namespace, one a line. $(x) means namespace x.
func (n *ns) ip(t testing.TB, script string, others ...*ns) {
	t.Helper()
	for i, o := range others {
		script = strings.ReplaceAll(script, "$"+strconv.Itoa(i+1), o.ref())
	}
	err := n.Do(func() error {
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("ip: %v", err)
	}
}

// quiet takes IPv6 away, whose duplicate address detection makes an event a
// second or two after everything that comes up.
func (n *ns) quiet(t testing.TB) {
	t.Helper()
	n.sysctl(t, "ipv6/conf/all/disable_ipv6", "1")
	n.sysctl(t, "ipv6/conf/default/disable_ipv6", "1")
}

// sysctl writes a network setting of the namespace.
func (n *ns) sysctl(t testing.TB, key, val string) {
	t.Helper()
	err := n.Do(func() error { return os.WriteFile("/proc/sys/net/"+key, []byte(val), 0) })
	if err != nil {
		t.Fatal(err)
	}
}

// world is a directory of names and the scanners of a test.
type world struct {
	dir string
	t   testing.TB
}

func newWorld(t testing.TB) *world {
	need(t)
	return &world{dir: t.TempDir(), t: t}
}

func (w *world) scanner(home *ns, change ...func(*Options)) *Scanner {
	w.t.Helper()
	o := Options{Home: home.Handle, Dirs: []string{w.dir}, Resync: time.Hour}
	for _, f := range change {
		f(&o)
	}
	s, err := NewScanner(o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	return s
}

func scan(t testing.TB, s *Scanner) Snapshot {
	t.Helper()
	snap, err := s.Scan(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

// hosts makes two hosts with a wire between them: 10.1.0.1 on pA in the first,
// 10.1.0.2 on pB in the second.
func (w *world) hosts() (a, b *ns) {
	w.t.Helper()
	a, b = named(w.t, w.dir, "a"), named(w.t, w.dir, "b")
	a.quiet(w.t)
	b.quiet(w.t)
	a.ip(w.t, `link add pA type veth peer name pB netns $1
		addr add 10.1.0.1/24 dev pA
		link set pA up
		link set lo up`, b)
	b.ip(w.t, `addr add 10.1.0.2/24 dev pB
		link set pB up
		link set lo up`)
	return a, b
}

const vxlan = "link add vx0 type vxlan id 42 dstport 4789 local 10.1.0.1 remote 10.1.0.2\n"

// until waits for events and scans at each until ok.
func until(t testing.TB, s *Scanner, what string, ok func(Snapshot) bool) Snapshot {
	t.Helper()
	limit := time.After(20 * time.Second)
	var snap Snapshot
	for {
		select {
		case <-s.Events():
			if snap = scan(t, s); ok(snap) {
				return snap
			}
		case <-limit:
			t.Fatalf("no event led to: %s\nlast seen: %+v", what, snap)
		}
	}
}

// calm scans until nothing that happened so far is still to cause an event, so
// that the next event has a cause of its own.
func calm(t testing.TB, s *Scanner) {
	t.Helper()
	for {
		select {
		case <-s.Events():
			scan(t, s)
		case <-time.After(3 * settleQuiet):
			return
		}
	}
}

// names of devices, as "cookie-less" facts that tests compare.
func devNames[T any](list []T, dev func(T) Dev) []string {
	var names []string
	for _, e := range list {
		names = append(names, dev(e).Name)
	}
	slices.Sort(names)
	return names
}

func underlayNames(s Snapshot) []string {
	return devNames(s.Underlays, func(u Underlay) Dev { return u.Dev })
}
func podNames(s Snapshot) []string {
	return devNames(s.Pods, func(p Pod) Dev { return p.Host })
}

// inNS runs a command in the namespace.
func inNS(t testing.TB, n *ns, name string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip("needs " + name)
	}
	err := n.Do(func() error {
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
}
