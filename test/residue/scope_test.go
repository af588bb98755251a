// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// verdict stands in for a test that Check watches.
type verdict struct {
	testing.TB
	lines    []string
	cleanups []func()
}

func (v *verdict) Helper()           {}
func (v *verdict) Cleanup(fn func()) { v.cleanups = append(v.cleanups, fn) }
func (v *verdict) Errorf(format string, args ...any) {
	v.lines = append(v.lines, fmt.Sprintf(format, args...))
}

func (v *verdict) end() []string {
	for _, fn := range v.cleanups {
		fn()
	}
	return v.lines
}

func TestCheckFailsATestThatLeavesSomething(t *testing.T) {
	b := newBed(t)
	v := &verdict{TB: t}
	check(v, b.scope, 0)
	b.onA(t, func(a netlink.Link) error { return netlink.LinkSetMTU(a, 1400) })
	got := v.end()
	if len(got) == 0 || !strings.Contains(strings.Join(got, "\n"), "a mtu: was 1500, is 1400") {
		t.Errorf("Check reported %q", got)
	}
}

func TestCheckWaitsForWhatTheKernelFreesLate(t *testing.T) {
	b := newBed(t)
	v := &verdict{TB: t}
	Check(v, b.scope)
	m := newMap(t, ebpf.CPUMap) // its thread ends after a grace period
	must(t, m.Put(uint32(0), uint32(64)))
	must(t, m.Close())
	if got := v.end(); len(got) > 0 {
		t.Errorf("Check reported %q", got)
	}
}

func TestNamespaceIsFoundByInode(t *testing.T) {
	b := newBed(t)
	path, err := Inode(b.ns.inode)
	must(t, err)
	ns, err := openNamespace(path)
	must(t, err)
	defer ns.file.Close()
	if ns.cookie != b.ns.cookie {
		t.Errorf("%s is another namespace", path)
	}
	if _, err := Inode(1); err == nil {
		t.Error("found a namespace that does not exist")
	}
}

// At home a test may make devices and another test may too; what stood there
// before must not change.
func TestHomeKeepsItsSettings(t *testing.T) {
	b := newBed(t)
	b.in(t, func() error { // this thread's home is the bed
		v := &verdict{TB: t}
		Check(v, Scope{})
		c := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "c"}, PeerName: "d"}
		if err := netlink.LinkAdd(c); err != nil {
			return err
		}
		if got := v.end(); len(got) > 0 {
			t.Errorf("a new device at home: Check reported %q", got)
		}

		v = &verdict{TB: t}
		check(v, Scope{}, 0)
		a, err := netlink.LinkByName("a")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMTU(a, 1400); err != nil {
			return err
		}
		if got := v.end(); len(got) == 0 {
			t.Error("a changed MTU at home was not reported")
		}
		return nil
	})
}

// Two tests on one machine: what only the other's processes hold is the other's.
func TestObjectsOfOthersDoNotCount(t *testing.T) {
	b := newBed(t)
	before := Take(t, b.scope)
	release := startStranger(t)
	after := Take(t, b.scope)
	if got := Diff(before, after); len(got) > 0 {
		t.Errorf("a stranger's map counts: %q", got)
	}
	all := b.scope
	all.Machine = true
	found := false
	for k, f := range Take(t, all).facts {
		found = found || strings.HasPrefix(k.what, "BPF map") && strings.HasPrefix(f.value, "ol_stranger")
	}
	if !found {
		t.Error("the whole machine's snapshot lacks the stranger's map")
	}
	release()
}

// A daemon that ends between a look at objects and one at their holders leaves objects without holder in a snapshot.
func TestAnObjectThatVanishedIsNoResidue(t *testing.T) {
	b := newBed(t)
	m := newMap(t, ebpf.Array)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	// No process holds what is under way in a socket.
	must(t, unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(m.FD()), nil, 0))
	info, err := m.Info()
	must(t, err)
	id, _ := info.ID()
	must(t, m.Close())
	before := Take(t, b.scope)
	if _, counts := before.facts[key{what: fmt.Sprintf("BPF map %d", id)}]; !counts {
		t.Fatal("a map that no process holds does not count")
	}
	must(t, errors.Join(unix.Close(pair[0]), unix.Close(pair[1])))
	if got := Diff(before, Take(t, b.scope)); len(got) > 0 {
		t.Errorf("a map that vanished: %q", got)
	}
}

const strangerEnv = "RESIDUE_TEST_STRANGER"

// startStranger starts a process that does not descend from this one and holds
// a map.
func startStranger(t *testing.T) (release func()) {
	t.Helper()
	hold, letGo, err := os.Pipe()
	must(t, err)
	ready, say, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { letGo.Close(); ready.Close() })
	// The shell ends at once; its child goes to the machine's init.
	cmd := exec.Command("sh", "-c", `"$0" <&3 >&4 3<&- 4>&- &`, os.Args[0])
	cmd.ExtraFiles = []*os.File{hold, say}
	cmd.Env = append(os.Environ(), strangerEnv+"=1")
	must(t, cmd.Run())
	hold.Close()
	say.Close()
	answer := bufio.NewReader(ready)
	if line, err := answer.ReadString('\n'); line != "ready\n" {
		t.Fatalf("stranger said %q: %v", line, err)
	}
	return func() {
		letGo.Close()
		_, _ = io.Copy(io.Discard, answer) // until it has ended
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(strangerEnv) != "" {
		os.Exit(stranger())
	}
	os.Exit(m.Run())
}

func stranger() int {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ol_stranger", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer m.Close()
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func TestMachineScopeFindsANewNamespace(t *testing.T) {
	needRoot(t)
	before := Take(t, Scope{Machine: true})
	b := newBed(t)
	want := regexp.MustCompile(fmt.Sprintf(`left behind: net:\[%d\], held by /proc/\d+/\S+ \(residue.test\) network namespace: inode %d`, b.ns.inode, b.ns.inode))
	if got := Diff(before, Take(t, Scope{Machine: true})); !slices.ContainsFunc(got, want.MatchString) {
		t.Errorf("no line %q among %q", want, got)
	}
}

func BenchmarkTake(b *testing.B) {
	if unix.Geteuid() != 0 {
		b.Skip("needs root: lists BPF objects")
	}
	for b.Loop() {
		Take(b, Scope{})
	}
}
