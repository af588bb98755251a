// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestSettingsAreThoseOfTheDevice(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	pod := held(t)
	a.ip(t, bridge+"link add ve1 numtxqueues 3 type veth peer name eth0 numtxqueues 3 netns $1\nlink set ve1 master br0 up", pod)
	s := w.scanner(a)
	peer := scan(t, s).Pods[0].Peer
	root, err := s.Sysfs(pod.cookie)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Sysfs(pod.cookie)
	if err != nil || again != root {
		t.Fatalf("a second /sys for the same namespace (%v)", err)
	}
	put := func(name, val string) {
		t.Helper()
		f, err := root.OpenFile("class/net/eth0/"+name, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(val); err != nil {
			t.Fatal(err)
		}
	}
	want := Settings{RPSCPUs: []string{"0"}, RPSFlowCnt: []uint32{0}, TxQueues: 3}
	got, err := s.Settings(peer)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
	put("queues/rx-0/rps_cpus", "1")
	put("queues/rx-0/rps_flow_cnt", "64")
	inNS(t, pod, "ip", "link", "set", "eth0", "up")
	inNS(t, pod, "ethtool", "-K", "eth0", "gro", "on")
	put("threaded", "1")
	got, err = s.Settings(peer)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Settings{RPSCPUs: []string{"1"}, RPSFlowCnt: []uint32{64}, TxQueues: 3, Threaded: true}, got); d != "" {
		t.Fatal(d)
	}
	nic := Underlay{Dev: peer, Receivers: []Receiver{{Dev: peer}}}
	for _, tt := range []struct{ mask, flows, want string }{{"1", "0", "RPS moves what eth0"}, {"0", "64", "RFS moves what eth0"}, {"0", "0", ""}} {
		put("queues/rx-0/rps_cpus", tt.mask)
		put("queues/rx-0/rps_flow_cnt", tt.flows)
		if got := s.Moves(nic); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("with %+v: %q", tt, got)
		}
	}
	for _, on := range []bool{true, false} {
		inNS(t, pod, "ethtool", "-K", "eth0", "gro", map[bool]string{true: "on", false: "off"}[on])
		if got, err := s.GRO(peer); err != nil || got != on {
			t.Fatalf("GRO %t: got %t, %v", on, got, err)
		}
	}

	// Another device takes the name: its settings must not be read as ours.
	pod.ip(t, "link set eth0 down\nlink set eth0 name old\nlink add eth0 type veth peer name other")
	if _, err := s.Settings(peer); !errors.Is(err, ErrGone) {
		t.Fatalf("after the name went to another device: %v, want ErrGone", err)
	}
}

func TestNamespaceIsNotTakenForAnotherOfTheSameName(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	first := named(t, w.dir, "x")
	s := w.scanner(a)
	scan(t, s)
	h, err := s.Namespace(first.cookie)
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	if _, err := s.Sysfs(first.cookie); err != nil {
		t.Fatal(err)
	}

	unname(w.dir + "/x")
	first.Close()
	second := named(t, w.dir, "x")
	if _, err := s.Namespace(first.cookie); !errors.Is(err, ErrGone) {
		t.Fatalf("Namespace of one that ended: %v, want ErrGone", err)
	}
	if _, err := s.Namespace(second.cookie); !errors.Is(err, ErrGone) {
		t.Fatalf("Namespace of one that no scan saw: %v, want ErrGone", err)
	}
	scan(t, s)
	if h, err = s.Namespace(second.cookie); err != nil {
		t.Fatal(err)
	}
	h.Close()
	if _, err := s.Sysfs(first.cookie); !errors.Is(err, ErrGone) {
		t.Fatalf("Sysfs of one that ended: %v, want ErrGone", err)
	}
}

func TestHomeCanBeOpenedWithoutAName(t *testing.T) {
	need(t)
	w := newWorld(t)
	home := held(t)
	home.ip(t, "link set lo up")
	s := w.scanner(home)
	scan(t, s)
	h, err := s.Namespace(home.cookie)
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	path, err := s.Path(home.cookie)
	if err != nil {
		t.Fatal(err)
	}
	inNS(t, home, "nsenter", "--net="+path, "true") // from another process
}

// The kernel answers with EINVAL for a device that is being unregistered: the file of another attribute that does so
// stands for it.
func TestADeviceThatIsBeingUnregisteredIsGone(t *testing.T) {
	need(t)
	dir := t.TempDir()
	index := filepath.Join(dir, "class/net/x0/ifindex")
	if err := errors.Join(os.MkdirAll(filepath.Dir(index), 0o700), os.WriteFile(index, []byte("5\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	x0, err := openDev(root, Dev{Ifindex: 5, Name: "x0"})
	if err != nil {
		t.Fatal(err)
	}
	x0.Close()
	if err := unix.Mount("/sys/class/net/lo/speed", index, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unname(index)
	if _, err := openDev(root, Dev{Ifindex: 5, Name: "x0"}); !errors.Is(err, ErrGone) {
		t.Errorf("%v, want ErrGone", err)
	}
}
