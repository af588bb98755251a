// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/residue"
	"github.com/overlane/overlane/test/speed"
)

const steers = alone + "pipeline: forced\ntier: tc\n"

// pods are the containers that a daemon knows.
func pods(t *testing.T, d *rig.Daemon) (n int, all []control.Device) {
	t.Helper()
	st, err := d.Peek()
	if err != nil {
		t.Fatal(err)
	}
	for _, dev := range st.Devices {
		if dev.Role == control.Pod {
			n++
		}
	}
	return n, st.Devices
}

// perPod is what a daemon has open for a pod, at most.
const perPod = 16

// Containers come, eight at a time, and most of them go at once, with the daemon looking at them
// in whatever state they are. Those that stay are steered; in the end nothing is left of any.
func TestFiftyContainersComeAndGo(t *testing.T) {
	speed.Long(t)
	s := engines(t)
	l := paced(t, s)
	l.check(t)
	d := rig.Start(t, rig.Spec{NS: s.bed.Receiver().NS, Config: steers})
	d.Acting()
	files := rig.OpenFiles(t, d.PID)
	known, _ := pods(t, d)
	mask := l.to.mask()
	const count, workers, stays = 50, 8, 10
	var stayed []*container
	var wg sync.WaitGroup
	next := make(chan int)
	stay := make(chan *container, count)
	for range workers {
		wg.Go(func() {
			for n := range next {
				c, err := s.create(s.receiver, 0, "fleeting", "-port", fmt.Sprint(port))
				if err != nil {
					t.Errorf("container %d: %v", n, err)
					continue
				}
				c.t = t
				if n%stays == 0 {
					stay <- c
				} else {
					c.remove()
				}
			}
		})
	}
	for n := range count {
		next <- n
	}
	close(next)
	wg.Wait()
	close(stay)
	for c := range stay {
		t.Cleanup(c.remove)
		stayed = append(stayed, c)
		rig.Until(t, "a container that stays is steered", func() (bool, string) {
			now := c.mask()
			return now == mask, fmt.Sprintf("its mask is %q, the other's %q\n%s", now, mask, d.Log())
		})
	}
	rig.Until(t, "status forgets the containers", func() (bool, string) {
		n, all := pods(t, d)
		return n == known+len(stayed), fmt.Sprintf("%+v", all)
	})
	l.goesOn()
	last := stayed[len(stayed)-1]
	for _, c := range stayed[:len(stayed)-1] {
		c.remove()
	}
	rig.Until(t, "hardly more files are open than before", func() (bool, string) {
		now := rig.OpenFiles(t, d.PID)
		return len(now) <= len(files)+perPod, fmt.Sprintf("%d files, were %d:\n%v\n%v", len(now), len(files), now, files)
	})
	ends(t, d)
	if mask := last.mask(); mask != "" {
		t.Errorf("the device of a container that came meanwhile has the mask %s, had none", mask)
	}
	last.remove()
	l.stop(undrained(d.Log()))
}

// With the engine go its containers and the network's namespace. The daemon lets go of them, and
// finds what comes afterwards.
func TestEngineRestarts(t *testing.T) {
	s := engines(t)
	// Of containers that came some time after the restart one was seen to find no peer.
	t.Cleanup(func() { clear(made) })
	residue.Check(t, residue.Scope{}) // the hosts do not stay as they are
	l := paced(t, s)
	d := rig.Start(t, rig.Spec{NS: s.bed.Receiver().NS, Config: steers})
	d.Acting()
	s.receiver.stop(t)
	rig.Until(t, "status forgets the network", func() (bool, string) {
		st, err := d.Peek()
		if err != nil {
			t.Fatal(err)
		}
		for _, dev := range st.Devices {
			if dev.Role == control.Tunnel || dev.Role == control.Pod {
				return false, fmt.Sprintf("%+v\n%s", st.Devices, d.Log())
			}
		}
		return true, ""
	})
	l.from.end()
	if err := s.receiver.start(); err != nil {
		t.Fatal(err)
	}
	if err := s.receiver.ready(); err != nil {
		t.Fatal(err)
	}
	if err := s.receiver.member(); err != nil {
		t.Fatal(err)
	}
	l = paced(t, s)
	before := d.Status().Counters.SteeredPackets
	rig.Until(t, "the new container's packets are steered", func() (bool, string) {
		n := d.Status().Counters.SteeredPackets - before
		return n > 1000, fmt.Sprintf("%d\n%s", n, d.Log())
	})
	ends(t, d)
	if mask := l.to.mask(); mask != "" {
		t.Errorf("the container's device has the mask %s, had none", mask)
	}
	l.stop(undrained(d.Log()))
}

// ends stops a daemon by SIGTERM, which has to end with 0.
func ends(t *testing.T, d *rig.Daemon) {
	t.Helper()
	d.Signal(unix.SIGTERM)
	if code := d.Exited().ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	d.GoneBoth()
	d.NothingLeft()
}
