// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
)

// Containers on macvlan are pods without a veth, whether their device is made where they are or moves there.
func TestContainersOnMacvlanAreFound(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	one, two, three := held(t), held(t), held(t)
	a.ip(t, bridge+`link add br1 type bridge
		link add link br1 name mv1 netns $1 type macvlan mode bridge
		link add link br0 name mv0 mtu 1400 netns $1 type macvlan mode bridge`, one)
	dev := func(n *ns, name string) Dev { return Dev{NetnsCookie: n.cookie, Name: name} }
	vx0 := []Dev{dev(a, "vx0")}
	want := []Stacked{{Dev: dev(one, "mv0"), Kind: "macvlan", MTU: 1400, On: dev(a, "br0"), Tunnels: vx0}}
	is := func(want []Stacked, got Snapshot) string {
		return cmp.Diff(want, got.Stacked, cmpopts.IgnoreFields(Dev{}, "Ifindex"))
	}
	s := w.scanner(a)
	if snap := scan(t, s); is(want, snap) != "" || len(snap.Pods) > 0 {
		t.Fatalf("%s\n%+v", is(want, snap), snap)
	}
	a.ip(t, "link add link br0 name mv0 mtu 1400 type macvlan mode bridge\nlink set mv0 netns $1", two)
	want = append(want, Stacked{Dev: dev(two, "mv0"), Kind: "macvlan", MTU: 1400, On: dev(a, "br0"), Tunnels: vx0})
	until(t, s, "one that moves there", func(n Snapshot) bool { return is(want, n) == "" })
	one.ip(t, "link del mv0")
	s.poke()
	until(t, s, "one that goes", func(n Snapshot) bool { return is(want[1:], n) == "" })
	a.ip(t, "link set vx0 nomaster\nlink add link vx0 name mv0 mtu 1400 netns $1 type macvlan mode bridge", three)
	s.wantFull.Store(true) // as the resync does: nothing tells of what is made there
	want = []Stacked{{Dev: dev(three, "mv0"), Kind: "macvlan", MTU: 1400, On: dev(a, "vx0"), Tunnels: vx0}}
	until(t, s, "one on the tunnel itself", func(n Snapshot) bool { return is(want, n) == "" })
}

// A namespace behind a pod is found by the id that the pod's has for it, although no scan saw it.
func TestANamespaceIsFoundByItsID(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	pod, vain := held(t), opened(t) // no process is in the latter
	a.ip(t, bridge+"link add ve1 type veth peer name eth0 netns $1\nlink set ve1 master br0 up", pod)
	s := w.scanner(a)
	scan(t, s)
	// end tells where the other end of one of the pod's devices is.
	end := func(name string) (id, dev int) {
		t.Helper()
		err := pod.Do(func() error {
			c, err := nlsock.Dial(unix.NETLINK_ROUTE, make([]byte, 1<<16))
			if err != nil {
				return err
			}
			defer c.Close()
			return c.Links(func() {}, func(l *nlsock.Link) {
				if l.Name == name {
					id, dev = l.LowerNSID, l.Lower
				}
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		return id, dev
	}
	is := func(name string, want uint64) {
		t.Helper()
		id, dev := end(name)
		if got, err := s.Other(pod.cookie, id, dev); got != want || err != nil {
			t.Errorf("behind %s: %d, %v; want %d", name, got, err, want)
		}
	}
	inner := held(t)
	pod.ip(t, "link add vi type veth peer name eth0 netns $1\nlink add vv type veth peer name eth0 netns $2", inner, vain)
	is("vi", inner.cookie)
	if h, err := s.Namespace(inner.cookie); err != nil {
		t.Error(err)
	} else {
		h.Close()
	}
	is("eth0", a.cookie)
	is("vv", vain.cookie)

	id, dev := end("vi")
	inner.kill()
	inner.Close()
	scan(t, s)
	// The kernel ends a namespace later, and the pair with it.
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		if _, left := end("vi"); left == 0 {
			break
		}
		if time.Since(begun) > 20*time.Second {
			t.Fatal("the pair of a namespace that has ended is still there")
		}
	}
	if _, err := s.Other(pod.cookie, id, dev); !errors.Is(err, ErrGone) {
		t.Errorf("one that has ended: %v", err)
	}
}
