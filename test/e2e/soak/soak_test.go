// SPDX-License-Identifier: Apache-2.0

// Package soak tests that a daemon beside which a node lives its life neither grows nor tires:
// pods come and go, rules and policies change, links flap, and traffic goes on.
package soak

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/residue"
	"github.com/overlane/overlane/test/speed"
)

func TestMain(m *testing.M) { rig.Main(m) }

// lasting is the variable with how long all of the soak lasts; `make soak` takes twenty minutes.
const lasting = "OVERLANE_SOAK"

// duration is how long it lasts, by default or as the operator has asked for.
func duration(t *testing.T) (d time.Duration, asked bool) {
	t.Helper()
	text := os.Getenv(lasting)
	if text == "" {
		return 12 * time.Second, false
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", lasting, err)
	}
	return d, true
}

const (
	// pace: a pod comes and one goes, a rule comes or goes, a policy comes or goes, a link flaps.
	pace = time.Second
	// alive is how many pods that come and go are there at a time.
	alive = 3
	// maxMemory of a daemon, and how much it may grow by while it holds no more, in KiB: the
	// runtime gives memory back when it likes to.
	maxMemory, moreMemory = 64 << 10, 8 << 10
	// What may be overtaken where GRO lets go of what it has joined when aggregation ends, and
	// where flows leave the path straight to a pod that was not seen to be empty: a poll on the
	// NIC and on the tunnel, and a pod's ring and a poll.
	polls, ring = 2 * rig.Poll, rig.InRing
)

// runs are the daemons beside which the node lives, each for its part of the time.
var runs = []struct{ name, config string }{
	{"without configuration", ""},
	{"express", "express: forced\naggregate: auto\n"},
}

func TestNothingGrowsBesideALivingNode(t *testing.T) {
	speed.Turn(t)
	span, asked := duration(t)
	list := runs
	if !asked {
		list = runs[1:] // the one that holds more
	}
	for _, r := range list {
		t.Run(r.name, func(t *testing.T) {
			rig.NeedCores(t, 2)
			b := rig.Lab(t, bed.Options{Topology: bed.Nested, NIC: bed.Softirq, Pods: 2})
			residue.Check(t, rig.Scope(b))
			l := rig.StartSteady(t, b, 4)
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: r.config})
			s := &life{t: t, b: b, d: d, l: l, express: strings.Contains(r.config, "express: forced")}
			s.live(span / time.Duration(len(list)))
			st := s.status()
			t.Logf("%+v", st.Counters)

			d.Signal(unix.SIGTERM)
			if code := d.Exited().ExitCode(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			d.GoneBoth()
			d.NothingLeft()
			l.GoesOn()
			v := l.Stop()
			ended := uint64(strings.Count(d.Log(), "aggregate standby")) + 1 // and once with the daemon
			left := st.Counters.ExpressLeft
			t.Logf("%d of %d came, %d late, %d of these when rules changed; aggregation ended %d times, %d flows left a path that was not seen to be empty",
				v.Received, l.Sent(), v.Reordered, s.handed, ended, left)
			if v.Reordered > s.handed+ended*polls+left*ring || v.Duplicated+v.Stale > 0 {
				t.Errorf("order was broken: %+v", v)
			}
		})
	}
}

// life is what happens to a node.
type life struct {
	t *testing.T
	b *bed.Bed
	d *rig.Daemon
	l *rig.Load

	express bool     // pods have paths straight from the NIC
	late    uint64   // datagrams, so far
	handed  uint64   // of these, when a NIC was handed from softirq to a thread, or back
	pods    int      // that have come
	remove  []func() // those that are there
	rule    string   // that is there
	uproot  func()   // the policy that is there
}

// live has the node live for so long, and compares what the daemon holds at calm moments of the
// first part with what it holds at the end.
func (s *life) live(span time.Duration) {
	t := s.t
	t.Helper()
	turns := max(int(span/pace), 6)
	every := min(max(turns/20, 3), 30) // turns between two calm moments
	first := map[string]held{}         // by what the daemon does, and under "" the most of all
	turn := 0
	for next := time.Now(); turn < turns; turn++ {
		for _, step := range []struct {
			what string
			do   func(int)
		}{{"pods", s.changePods}, {rules, s.changeRules}, {"policies", s.changePolicies}, {"links", s.flap}} {
			step.do(turn)
			next = next.Add(pace / 4)
			time.Sleep(time.Until(next)) // the pace of what is tested, not a wait
			s.note(step.what)
		}
		s.l.GoesOn()
		if turn%every != every-1 {
			continue
		}
		s.calm()
		now := s.settled()
		t.Logf("after %d turns: %s", turn+1, now)
		if 3*turn <= turns {
			first[now.doing], first[""] = now.atLeast(first[now.doing]), now.atLeast(first[""])
		}
		next = time.Now()
	}
	s.calm()
	rig.Until(t, "the daemon holds no more than at first", func() (bool, string) {
		now := s.look()
		base, ok := first[now.doing]
		if !ok {
			base = first[""]
		}
		return now.fits(base), fmt.Sprintf("at first, the most: %s\nnow: %s", base, now)
	})
	t.Logf("at the end, after %d pods: %s", s.pods, s.look())
}

// held is what a daemon holds while it does certain things.
type held struct {
	doing string
	rig.Holds
	goroutines int
}

func (h held) String() string {
	return fmt.Sprintf("%s, %d goroutines; %s", h.Holds, h.goroutines, h.doing)
}

// rules is what a change of them is called.
const rules = "rules"

// note says how many came late after a change. When the first rule comes and when the last one
// goes, a NIC that is polled in softirq is handed to a thread, or back, and a poll may be
// overtaken (KNOWN_ISSUES.md).
func (s *life) note(what string) {
	s.t.Helper()
	late := s.l.Verdict().Reordered - s.late
	if late == 0 {
		return
	}
	s.late += late
	s.t.Logf("%d came late after a change of %s", late, what)
	if what == rules && late <= polls {
		s.handed += late
	}
}

// settled is what the daemon holds once the kernel has freed what it frees late.
func (s *life) settled() (now held) {
	s.t.Helper()
	const looks = 10
	same := 0
	rig.Until(s.t, "objects come and go no more", func() (bool, string) {
		last := now
		if now = s.look(); now.Objects != last.Objects {
			same = 0
		}
		same++
		return same >= looks, now.String()
	})
	return now
}

// look says what the daemon does, and holds.
func (s *life) look() held {
	s.t.Helper()
	h := held{Holds: s.d.Holds(s.b), goroutines: int(s.d.Metric("go_goroutines"))}
	for _, m := range s.status().Mechanisms {
		h.doing += fmt.Sprintf("%s %s ", m.Name, m.State)
	}
	h.doing = strings.TrimSpace(h.doing)
	return h
}

// atLeast is the more of each.
func (h held) atLeast(o held) held {
	h.Programs, h.Maps, h.Links = max(h.Programs, o.Programs), max(h.Maps, o.Maps), max(h.Links, o.Links)
	h.Files, h.Memory, h.goroutines = max(h.Files, o.Files), max(h.Memory, o.Memory), max(h.goroutines, o.goroutines)
	return h
}

// fits tells whether nothing has grown.
func (h held) fits(first held) bool {
	return h.Programs <= first.Programs && h.Maps <= first.Maps && h.Links <= first.Links &&
		h.Files <= first.Files && h.goroutines <= first.goroutines &&
		h.Memory <= first.Memory+moreMemory && h.Memory <= maxMemory
}

func (s *life) status() control.Status {
	s.t.Helper()
	st, err := s.d.Peek()
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.d.Log())
	}
	return st
}

// calm brings the node back to what it was at the beginning, and waits until the daemon knows.
func (s *life) calm() {
	s.t.Helper()
	for _, remove := range s.remove {
		remove()
	}
	s.remove = nil
	if s.rule != "" {
		s.changeRules(0)
		s.l.GoesOn()
		s.note(rules)
	}
	if s.uproot != nil {
		s.changePolicies(0)
	}
	s.l.GoesOn()
	rig.Until(s.t, "the daemon knows of a calm node", func() (bool, string) {
		st := s.status()
		open := 0
		for _, way := range st.Express {
			if way.Open {
				open++
			}
		}
		// An underlay, a tunnel, two pods; the others are settings of these.
		devices := 0
		for _, dev := range st.Devices {
			if dev.Role != "" {
				devices++
			}
		}
		return devices == 4 && len(st.Rules) == 0 && (!s.express || open == 2), fmt.Sprintf("%+v %+v %+v", st.Devices, st.Rules, st.Express)
	})
}

func (s *life) changePods(int) {
	s.t.Helper()
	p, remove := rig.Container(s.t, s.b, s.pods%1000)
	rig.Plug(s.t, s.b.Receiver(), p)
	s.pods++
	if s.remove = append(s.remove, remove); len(s.remove) > alive {
		s.remove[0]()
		s.remove = s.remove[1:]
	}
}

func (s *life) changeRules(n int) {
	s.t.Helper()
	args := []string{"prio", "del", s.rule}
	if s.rule == "" {
		s.rule = fmt.Sprintf("rule-%d", n)
		args = []string{"prio", "add", s.rule, "proto", "tcp", "port", "22"}
		if n%4 == 0 {
			args = []string{"prio", "add", s.rule, "proto", "udp", "port", fmt.Sprint(traffic.Port)}
		}
	} else {
		s.rule = ""
	}
	if r := s.d.Verb(args...); r.Code != 0 {
		s.t.Fatalf("overlane %s: %s\n%s", strings.Join(args, " "), r, s.d.Log())
	}
}

// changePolicies plants what lets everything pass, in one namespace after the other.
func (s *life) changePolicies(n int) {
	s.t.Helper()
	if s.uproot != nil {
		s.uproot()
		s.uproot = nil
		return
	}
	rx := s.b.Receiver()
	at := []*netns.Handle{rx.NS, rx.Overlay, rx.Pods[0].NS}[n%3]
	s.nft(at, "add table inet soak\nadd chain inet soak c { type filter hook prerouting priority 0 ; }\nadd rule inet soak c counter\n")
	s.uproot = func() { s.nft(at, "delete table inet soak\n") }
}

func (s *life) nft(at *netns.Handle, script string) {
	s.t.Helper()
	err := at.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w\n%s", err, out)
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// flap takes a link down and up again: the NIC's other end, the NIC, a pod's.
func (s *life) flap(n int) {
	s.t.Helper()
	rx, tx := s.b.Receiver(), s.b.Sender()
	for _, at := range []struct {
		ns  *netns.Handle
		dev string
	}{{tx.NS, tx.Wire}, {rx.NS, rx.Wire}, {rx.Overlay, rx.Pods[1].HostEnd}}[n%3 : n%3+1] {
		nl := rig.In(s.t, at.ns)
		defer nl.Close()
		l, err := nl.LinkByName(at.dev)
		for _, set := range []func(netlink.Link) error{nl.LinkSetDown, nl.LinkSetUp} {
			if err == nil {
				err = set(l)
			}
		}
		if err != nil {
			s.t.Fatalf("flap %s: %v", at.dev, err)
		}
	}
}
