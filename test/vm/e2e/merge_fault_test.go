// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism/pipeline"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/residue"
	"github.com/overlane/overlane/test/wire"
)

// mergeStandsFaults has one connection go through all that can happen to it. Whatever
// does, it goes on, each byte arrives, and it is split and put in order again.
func mergeStandsFaults(t *testing.T) {
	s := lay(t, bridged)
	residue.Check(t, s.all())
	s.begin(t, func(opts *daemon.Options) {
		splits(governor.XDP, 32, 1)(opts)
		opts.Pipeline.Microflows.Hold = usual
	})
	p := s.pour(t, v4)
	b := &s.hosts[1]
	// A fault's end is that packets are put in order again, by flows split anew or not.
	ordered := func(t *testing.T) {
		t.Helper()
		begin := s.d.Status().Counters.MergeHeld
		until(t, "packets wait for others", func() bool { return s.d.Status().Counters.MergeHeld > begin })
	}
	ordered(t)
	fault := func(name string, do func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			ordered(t)
			was := s.count(t)
			do(t)
			p.reach(t, 1<<20)
			ordered(t)
			s.since(t, was)
			t.Logf("the longest pause so far: %v", time.Duration(p.pause.Load()).Round(time.Millisecond))
		})
	}
	for _, l := range []struct {
		what  string
		ns    *netns.Handle
		dev   string
		every int
	}{
		// Before the split, as many as the sender hands down at a time.
		{"bursts are lost on the way", s.hosts[0].net, vethDev, 20},
		// Behind it, as many as GRO has joined.
		{"packets are lost in a branch", b.ns, wireDev, 60},
		{"packets are lost on the way", s.hosts[0].net, vethDev, 500},
	} {
		if l.every == 500 {
			if err := s.hosts[0].pod.Do(func() error { return segmentEarly(podDev) }); err != nil {
				t.Fatal(err)
			}
		}
		fault(l.what, func(t *testing.T) {
			was := s.count(t)
			loss, err := wire.DropEvery(l.ns, l.dev, l.every)
			if err != nil {
				t.Fatal(err)
			}
			p.reach(t, 6<<20)
			n, err := loss.End()
			if err != nil {
				t.Fatal(err)
			}
			d := s.since(t, was)
			t.Logf("%d packets dropped", n)
			if n == 0 || d.gaps == 0 {
				t.Errorf("%d packets were dropped, and %d times one was not waited for", n, d.gaps)
			}
		})
	}
	fault("a branch stands still, shorter than packets wait", func(t *testing.T) {
		was := s.count(t)
		for range 5 {
			hog(t, 1, 30*time.Millisecond)
			p.reach(t, 256<<10)
		}
		if d := s.since(t, was); d.late != 0 && d.expired+d.unwatched == 0 {
			t.Errorf("%d segments came out of order", d.late)
		}
	})
	fault("a branch stands still, longer than packets wait", func(t *testing.T) {
		for range 2 {
			hog(t, 1, 300*time.Millisecond)
			p.reach(t, 256<<10)
		}
	})
	change := func(do func(nl *netlink.Handle, dev netlink.Link) error) {
		t.Helper()
		err := in(b.net, func(nl *netlink.Handle) error {
			dev, err := nl.LinkByName(pipeline.MergeDevice)
			if err != nil {
				return err
			}
			return do(nl, dev)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	fault("another program deletes the qdisc", func(t *testing.T) {
		change(func(nl *netlink.Handle, dev netlink.Link) error {
			list, err := nl.QdiscList(dev)
			if err != nil || len(list) == 0 {
				return fmt.Errorf("qdiscs %v: %w", list, err)
			}
			return nl.QdiscDel(list[0])
		})
	})
	fault("another program sets the device down", func(t *testing.T) {
		change(func(nl *netlink.Handle, dev netlink.Link) error { return nl.LinkSetDown(dev) })
	})
	fault("another program deletes the device", func(t *testing.T) {
		change(func(nl *netlink.Handle, dev netlink.Link) error { return nl.LinkDel(dev) })
	})
	fault("another program renames the other end, and deletes the device then", func(t *testing.T) {
		var dev netlink.Link
		err := in(b.net, func(nl *netlink.Handle) (err error) {
			if dev, err = nl.LinkByName(pipeline.MergedDevice); err != nil {
				return err
			}
			return nl.LinkSetName(dev, "renamed")
		})
		if err != nil {
			t.Fatal(err)
		}
		until(t, "the daemon has let go of it", func() bool {
			var r *link.QueryResult
			err := b.net.Do(func() (err error) {
				r, err = link.QueryPrograms(link.QueryOptions{Target: dev.Attrs().Index, Attach: ebpf.AttachTCXIngress})
				return err
			})
			return err == nil && len(r.Programs) == 0
		})
		if err := in(b.net, func(nl *netlink.Handle) error { return nl.LinkDel(dev) }); err != nil {
			t.Fatal(err)
		}
	})
	fault("another program puts XDP on the pod's end", func(t *testing.T) {
		foreign := passXDP(t, b.pod, podDev)
		until(t, "status says that flows stay whole", func() bool {
			return slices.ContainsFunc(s.d.Status().Devices, func(d control.Device) bool {
				return strings.Contains(d.Reason, "stay whole here: XDP program") && strings.Contains(d.Reason, "is on the pod's end of "+vethDev)
			})
		})
		p.reach(t, 1<<20)
		was := s.count(t)
		p.reach(t, 1<<20)
		if d := s.since(t, was); d.split != 0 || d.passed != 0 {
			t.Errorf("%d packets were split, %d passed the program by", d.split, d.passed)
		}
		if err := foreign.Close(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("another program detaches ours in front of the pod", func(t *testing.T) {
		was := s.count(t)
		if err := detach(b.net, vethDev, ebpf.AttachTCXEgress); err != nil {
			t.Fatal(err)
		}
		p.reach(t, 4<<20)
		if d := s.since(t, was); d.splits != 0 {
			t.Errorf("a flow that no resequencer puts in order was split %d times", d.splits)
		}
		// It is whole: nothing comes out of order.
		was = s.count(t)
		p.reach(t, 2<<20)
		if d := s.since(t, was); d.split != 0 || d.late != 0 {
			t.Errorf("%d packets were split, %d segments came out of order", d.split, d.late)
		}
	})
	p.finish(t)
	s.end(t)
}

// What has waited for a branch does not go on faster than the core behind takes it, and none
// overtakes another, however many come meanwhile: those that there is no room for are dropped.
func whatWaitedFindsRoom(t *testing.T) {
	needMachine(t)
	set(t, backlog, "150")
	s := lay(t, bridged)
	residue.Check(t, s.all())
	s.d, s.stop = s.start(t, governor.TC, splits(governor.XDP, 16, 1))
	u := s.send(t, v4, 32, 2*time.Millisecond)
	until(t, "the flow is split", func() bool { return s.d.Status().Counters.Splits > 0 })
	was := s.count(t)
	until(t, "many wait", func() bool {
		hog(t, 1, 300*time.Millisecond)
		return s.d.Status().Counters.MergeHeld > was.daemon.MergeHeld+2000
	})
	u.reach(t, 1000)
	d, late := s.since(t, was), u.late.Load()
	// Of the whole flow a core that stands still would have too many for so small a backlog.
	set(t, backlog, "10000")
	s.end(t)
	u.reach(t, 100)
	is := d.end.daemon
	u.finishLate(t, is.MergeNoRoom+is.MergeRefused)
	noRoom := is.MergeNoRoom + is.MergeRefused - was.daemon.MergeNoRoom - was.daemon.MergeRefused
	if d.lost != noRoom {
		t.Errorf("%d packets were dropped on the way, %d of them for want of room at the merge", d.lost, noRoom)
	}
	if late != 0 && d.expired+d.unwatched == 0 {
		t.Errorf("%d datagrams came late", late)
	}
}

// detach takes a program off a hook, as another program would.
func detach(ns *netns.Handle, dev string, hook ebpf.AttachType) error {
	var index int
	err := in(ns, func(nl *netlink.Handle) error {
		l, err := nl.LinkByName(dev)
		if err == nil {
			index = l.Attrs().Index
		}
		return err
	})
	if err != nil {
		return err
	}
	return ns.Do(func() error {
		r, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook})
		if err != nil {
			return err
		}
		if len(r.Programs) != 1 {
			return fmt.Errorf("%d programs are attached to %s", len(r.Programs), dev)
		}
		id, ok := r.Programs[0].LinkID()
		if !ok {
			return fmt.Errorf("a program on %s has no link", dev)
		}
		l, err := link.NewFromID(id)
		if err != nil {
			return err
		}
		return errors.Join(l.Detach(), l.Close())
	})
}

// passXDP puts a program on a device that lets all pass.
func passXDP(t *testing.T, ns *netns.Handle, dev string) (l link.Link) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close() // the link keeps it
	err = ns.Do(func() error {
		ifi, err := net.InterfaceByName(dev)
		if err == nil {
			l, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: ifi.Index, Flags: link.XDPDriverMode})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// The pod goes while packets wait for their turn on the way to it.
func mergeLosesItsPod(t *testing.T) {
	s := lay(t, bridged)
	residue.Check(t, residue.Scope{}) // the pod's devices do not stay
	s.begin(t, splits(governor.XDP, 32, 1))
	b := &s.hosts[1]
	p := s.pour(t, v4)
	p.reach(t, 1<<20)
	err := in(b.net, func(nl *netlink.Handle) error {
		l, err := nl.LinkByName(vethDev)
		if err != nil {
			return err
		}
		return nl.LinkDel(l)
	})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "nothing waits any more", func() bool { return s.d.Status().Counters.MergeWaiting == 0 })
	p.abort(t)
	s.end(t)
	if b.resequencer(t).ifindex != 0 {
		t.Error("the resequencer is still there")
	}
}

// The core of a branch goes offline, and comes back.
func branchsCoreGoesOffline(t *testing.T) {
	needMachine(t)
	s := split(t, 32)
	p := s.pour(t, v4)
	p.reach(t, 1<<20)
	set(t, core1, "0")
	until(t, "core 1 is used no more", func() bool { return slices.Equal(s.d.Status().Cores, []int{0}) })
	p.reach(t, 2<<20)
	was := s.count(t)
	p.reach(t, 1<<20)
	if d := s.since(t, was); d.split != 0 {
		t.Errorf("%d packets were split over one core", d.split)
	}
	if err := os.WriteFile(core1, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	until(t, "packets wait for others again", func() bool { return s.d.Status().Counters.MergeHeld > was.daemon.MergeHeld })
	p.finish(t)
	s.end(t)
}
