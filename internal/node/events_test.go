// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
)

const bridge = vxlan + `link add br0 type bridge
	link set vx0 master br0 up
	link set br0 up
	`

func TestPodsComingAndGoingAreEvents(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	a.ip(t, bridge)
	s := w.scanner(a)
	if snap := scan(t, s); len(snap.Pods) != 0 {
		t.Fatalf("%+v", snap)
	}

	pod := held(t)
	a.ip(t, "link add ve1 type veth peer name eth0 netns $1\nlink set ve1 master br0 up", pod)
	until(t, s, "the new pod", func(n Snapshot) bool { return len(n.Pods) == 1 })

	// The container ends as containers do: its process does. Only if the
	// scanner does not hold the namespace does its veth go too.
	pod.Close()
	pod.kill()
	until(t, s, "the pod's end", func(n Snapshot) bool { return len(n.Pods) == 0 && len(n.Skipped) == 0 })
}

// A tunnel gets an uplink, and loses one, with the routes to its remotes, and with the nexthop objects that these name.
func TestUplinksComingAndGoingAreEvents(t *testing.T) {
	for name, tt := range map[string]struct{ compat, one, two string }{
		"routes": {"1",
			"route replace 10.3.3.0/24 via 10.1.0.2",
			"route replace 10.3.3.0/24 nexthop via 10.1.0.2 nexthop via 10.2.0.2"},
		"nexthop objects": {"0", "nexthop replace id 3 group 1", "nexthop replace id 3 group 1/2"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a, _ := w.hosts()
			a.sysctl(t, "ipv4/nexthop_compat_mode", tt.compat)
			a.ip(t, nexthops)
			s := w.scanner(a)
			scan(t, s)
			for n := range 2 {
				calm(t, s)
				a.ip(t, []string{tt.one, tt.two}[n])
				until(t, s, "other uplinks", func(snap Snapshot) bool {
					return len(snap.Underlays) == n+1 && len(snap.Tunnels[0].Underlays) == n+1
				})
			}
		})
	}
}

func TestTunnelThatMovesToAKnownNamespaceIsAnEvent(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	over := named(t, w.dir, "overlay")
	s := w.scanner(a)
	scan(t, s)
	a.ip(t, vxlan+"link set vx0 netns $1", over)
	until(t, s, "the tunnel elsewhere", func(n Snapshot) bool {
		return len(n.Tunnels) == 1 && n.Tunnels[0].NetnsCookie == over.cookie
	})
	// From now on changes in there are events, too.
	pod := held(t)
	over.ip(t, `link add br0 type bridge
		link set vx0 master br0 up
		link add ve1 type veth peer name eth0 netns $1
		link set ve1 master br0 up`, pod)
	until(t, s, "a pod in there", func(n Snapshot) bool { return len(n.Pods) == 1 })
}

func TestScannerLetsGoOfATunnelsNamespaceWhenItsHoldersDo(t *testing.T) {
	// Of a descriptor that another process closes nothing tells; it does tell
	// that the process ended.
	for _, kind := range []string{"process", "descriptor", "name"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			a, _ := w.hosts()
			var over *ns
			drop := func() { over.kill() }
			switch kind {
			case "process":
				over = held(t)
			case "descriptor":
				over = opened(t)
			case "name":
				over = named(t, w.dir, "overlay")
				drop = func() { unname(w.dir + "/overlay") }
			}
			// mark lives in the host and ends with the other namespace.
			a.ip(t, vxlan+"link set vx0 netns $1\nlink add mark type veth peer name far netns $1", over)
			s := w.scanner(a)
			if snap := scan(t, s); len(snap.Tunnels) != 1 {
				t.Fatalf("%+v", snap)
			}
			over.quiet(t)
			calm(t, s)
			over.Close()
			drop()
			root, err := s.Sysfs(a.cookie)
			if err != nil {
				t.Fatal(err)
			}
			until(t, s, "the end of the tunnel and its namespace", func(n Snapshot) bool {
				_, err := root.Stat("class/net/mark")
				return len(n.Tunnels) == 0 && errors.Is(err, fs.ErrNotExist)
			})
			if _, err := s.Namespace(over.cookie); !errors.Is(err, ErrGone) {
				t.Fatalf("Namespace: %v, want ErrGone", err)
			}
		})
	}
}

func TestContainerThatGetsItsRoutesLateIsFound(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	pod := held(t)
	a.ip(t, vxlan+`link set vx0 up
		route add 10.244.1.0/24 via 10.1.0.2 dev vx0 onlink
		link add ve1 type veth peer name eth0 netns $1
		link set ve1 up
		addr add 10.244.0.1/24 dev ve1`, pod)
	a.sysctl(t, "ipv4/ip_forward", "1")
	pod.ip(t, "link set eth0 up\naddr add 10.244.0.2/24 dev eth0")
	s := w.scanner(a)
	if snap := scan(t, s); len(snap.Pods) != 0 {
		t.Fatalf("a link between hosts was taken for a pod: %+v", snap.Pods)
	}
	calm(t, s)
	pod.ip(t, "route add default via 10.244.0.1") // of which the host hears nothing
	until(t, s, "the pod", func(n Snapshot) bool { return len(n.Pods) == 1 })
}

func TestLostMessagesLeadToAFullScan(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	s := w.scanner(a)
	// A subscription with room for about one message.
	s.scanning.Lock()
	s.rcvbuf = 1
	s.watches[a.cookie].close()
	err := a.Do(func() (err error) {
		s.watches[a.cookie], err = s.watchHere(a.cookie)
		return err
	})
	s.scanning.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	scan(t, s)
	if s.wantFull.Load() {
		t.Fatal("a full scan is due before anything happened")
	}
	for range 20 {
		var b strings.Builder
		for i := range 100 {
			fmt.Fprintf(&b, "link add d%d type veth peer name e%[1]d\n", i)
		}
		for i := range 100 {
			fmt.Fprintf(&b, "link del d%d\n", i)
		}
		a.ip(t, b.String())
		if s.wantFull.Load() {
			break
		}
	}
	if !s.wantFull.Load() {
		t.Fatal("no overrun was noticed")
	}
	<-s.Events()
}

func TestResyncIsAnEventWithoutACause(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	s := w.scanner(a, func(o *Options) { o.Resync = 10 * time.Millisecond })
	<-s.Events()
	<-s.Events()
}

func TestClosedScannerRefuses(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	s := w.scanner(a)
	s.Close()
	if _, err := s.Scan(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Fatalf("Scan: %v", err)
	}
	for range s.Events() { // ends, since Close closes it
	}
}

func TestTwoHundredPods(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	const n = 200
	a.ip(t, bridge)
	before := openFDs(t)
	pods := make([]*ns, n)
	var script strings.Builder
	for i := range pods {
		pods[i] = named(t, w.dir, fmt.Sprintf("pod%d", i))
		fmt.Fprintf(&script, "link add ve%d type veth peer name eth0 netns %s\nlink set ve%[1]d master br0 up\n", i, pods[i].ref())
	}
	a.ip(t, script.String())
	s := w.scanner(a)
	if snap := scan(t, s); len(snap.Pods) != n {
		t.Fatalf("%d pods, skipped %v", len(snap.Pods), snap.Skipped)
	}
	fds := openFDs(t)
	for i := range 10 {
		if i == 9 {
			s.wantFull.Store(true) // before, what changed was read
		}
		if snap := scan(t, s); len(snap.Pods) != n {
			t.Fatalf("%d pods in scan %d, skipped %v", len(snap.Pods), i+2, snap.Skipped)
		}
	}
	if now := openFDs(t); now > fds {
		t.Fatalf("scanning leaks descriptors: %d, then %d", fds, now)
	}
	for i, pod := range pods {
		unname(fmt.Sprintf("%s/pod%d", w.dir, i))
		pod.Close()
	}
	until(t, s, "the end of all pods", func(n Snapshot) bool { return len(n.Pods)+len(n.Skipped) == 0 })
	// What a scanner has for itself: home, a subscription, names, the poller,
	// home's sysfs.
	if now := openFDs(t); now > before+8 {
		t.Fatalf("%d descriptors before %d pods came and went, %d after", before, n, now)
	}
}

func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// A container engine may have its namespaces mounted anywhere, and in that of an overlay network there is no process.
func TestATunnelIsFoundWhereverItsNamespaceIsMounted(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	anywhere := func(o *Options) { o.Dirs = nil }
	s := w.scanner(a, anywhere)
	if snap := scan(t, s); len(snap.Tunnels) != 0 {
		t.Fatalf("%+v", snap)
	}
	calm(t, s)
	// The tunnel is there before its namespace is mounted, and nothing else tells of it.
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	over := wrap(t, h)
	a.ip(t, vxlan+"link set vx0 netns $1", over)
	if snap := scan(t, s); len(snap.Tunnels) != 0 {
		t.Fatalf("found without a mount: %+v", snap)
	}
	calm(t, s)
	dir := filepath.Join(t.TempDir(), "exec root", "netns")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mount(t, h, filepath.Join(dir, "1-abcdefghij"))
	until(t, s, "the tunnel in the namespace that is mounted", func(n Snapshot) bool {
		return len(n.Tunnels) == 1 && n.Tunnels[0].NetnsCookie == over.cookie
	})
	if l := s.Searched(); !slices.Contains(l.Dirs, dir) {
		t.Errorf("looked in %v", l.Dirs)
	}
	// Another scanner finds it from the beginning, and may be told to search elsewhere only.
	if snap := scan(t, w.scanner(a, anywhere)); len(snap.Tunnels) != 1 {
		t.Errorf("%+v", snap)
	}
	if snap := scan(t, w.scanner(a)); len(snap.Tunnels) != 0 {
		t.Errorf("%+v", snap)
	}
}

// Where files are short, a scan fails at any of its steps. None of them tells that something has gone.
func TestAScanThatLacksFilesLosesNothing(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	over, pod := named(t, w.dir, "overlay"), held(t)
	a.ip(t, vxlan+"link set vx0 netns $1", over)
	over.ip(t, `link add br0 type bridge
		link set vx0 master br0 up
		link set br0 up
		link add ve1 type veth peer name eth0 numrxqueues 4 netns $1
		link set ve1 master br0 up`, pod)
	s := w.scanner(a)
	whole := func(n Snapshot) bool {
		return len(n.Underlays) == 1 && n.Underlays[0].Moves == "" && len(n.Tunnels) == 1 && len(n.Pods) == 1
	}
	first := scan(t, s)
	if !whole(first) {
		t.Fatalf("%+v", first)
	}
	var usual unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &usual); err != nil {
		t.Fatal(err)
	}
	limit := func(files uint64) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: usual.Max}); err != nil {
			t.Fatal(err)
		}
	}
	defer limit(usual.Cur)
	failed := 0
	for files := uint64(3); ; files++ {
		limit(files)
		h, unopened := s.Namespace(over.cookie)
		moves := s.Moves(first.Underlays[0])
		snap, err := s.Scan(t.Context())
		limit(usual.Cur)
		if unopened == nil {
			h.Close()
		}
		switch {
		case errors.Is(unopened, ErrGone):
			t.Fatalf("with %d files: %v", files, unopened)
		case moves != "":
			t.Fatalf("with %d files: %s", files, moves)
		case err != nil:
			failed++
		case !whole(snap):
			t.Fatalf("with %d files, after %d scans that failed: %+v", files, failed, snap)
		default:
			if failed == 0 {
				t.Fatalf("%d files are enough", files)
			}
			return
		}
	}
}

// What stays unreadable is left out in the end: the others are to be served.
func TestANamespaceThatStaysUnreadableIsLeftOutInTheEnd(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	over := named(t, w.dir, "overlay")
	a.ip(t, vxlan+"link set vx0 netns $1", over)
	s := w.scanner(a)
	if snap := scan(t, s); len(snap.Tunnels) != 1 {
		t.Fatalf("%+v", snap)
	}
	calm(t, s)
	cover, name := filepath.Join(w.dir, "cover"), filepath.Join(w.dir, "overlay")
	if err := os.WriteFile(cover, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(cover, name, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	uncover := func() { unix.Unmount(name, unix.MNT_DETACH) }
	defer uncover()
	for range 2 {
		if snap, err := s.Scan(t.Context()); !errors.Is(err, netns.ErrHidden) {
			t.Fatalf("under another mount: %v, %+v", err, snap)
		}
		<-s.Events() // it is to be scanned again
	}
	if _, err := s.Namespace(over.cookie); !errors.Is(err, netns.ErrHidden) || errors.Is(err, ErrGone) {
		t.Errorf("under another mount: %v, want no ErrGone", err)
	}
	s.failing = s.failing.Add(-patience)
	snap := scan(t, s)
	if hidden := func(skip Skip) bool { return strings.Contains(skip.Reason, netns.ErrHidden.Error()) }; len(snap.Tunnels) != 0 || !slices.ContainsFunc(snap.Skipped, hidden) {
		t.Fatalf("a minute later: %+v", snap)
	}
	scan(t, s) // and not again for a minute
	if _, err := s.Sysfs(over.cookie); err != nil {
		t.Errorf("what was open of it is closed: %v", err)
	}
	uncover()
	if snap := scan(t, s); len(snap.Tunnels) != 1 {
		t.Fatalf("it can be read again: %+v", snap)
	}
}

// The loop asks the Scanner, and works with what it was told of, while a scan is under way that takes long.
func TestWhileAScanIsUnderWayTheLastOneIsAnsweredFrom(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	over := named(t, w.dir, "overlay")
	a.ip(t, vxlan+"link set vx0 netns $1", over)
	s := w.scanner(a)
	scan(t, s)
	root, err := s.Sysfs(over.cookie)
	if err != nil {
		t.Fatal(err)
	}
	s.scanning.Lock() // as a scan does
	answered := make(chan error, 1)
	go func() {
		s.Places()
		s.Searched()
		_, err := s.Path(over.cookie)
		h, e := s.Namespace(over.cookie)
		if e == nil {
			e = h.Close()
		}
		_, another := s.Sysfs(over.cookie)
		answered <- errors.Join(err, e, another)
	}()
	select {
	case err := <-answered:
		if err != nil {
			t.Errorf("while a scan is under way: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("what is known waits for the end of a scan")
	}
	s.scanning.Unlock()

	over.ip(t, "link del vx0")
	if err := unix.Unmount(filepath.Join(w.dir, "overlay"), unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	over.Close()
	take, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(s.Known(), over.cookie) {
		t.Error("a namespace is forgotten before the scan is taken over that has not found it")
	}
	if _, err := root.Stat("class/net"); err != nil {
		t.Errorf("its sysfs was closed under the one that reads it: %v", err)
	}
	if snap := take(); len(snap.Tunnels) != 0 || slices.Contains(s.Known(), over.cookie) {
		t.Errorf("after that: %+v, and the namespace is known: %t", snap, slices.Contains(s.Known(), over.cookie))
	}
}
