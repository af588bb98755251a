// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// What irqbalance does is that the NIC is polled elsewhere. The NIC's thread, moved to and fro,
// moves no placement with it; where it stays, the placement follows.
func TestPlacementFollowsTheNICsCore(t *testing.T) {
	speed.Long(t)
	b := lab(t, bed.Options{})
	home := b.PlaceCores().NIC[0]
	away := 1 - home
	tids, err := b.NAPIThreads()
	must(t, err)
	poll := func(core int) {
		t.Helper()
		var set unix.CPUSet
		set.Set(core)
		must(t, unix.SchedSetaffinity(tids[0], &set))
	}
	t.Cleanup(func() { poll(home) })
	d, l := start(t, b)
	anew := func() int { return strings.Count(d.Log(), "placed anew") }
	tunnelOn := func() (cores []int) {
		for _, lane := range d.Status().Lanes {
			if lane.Stage == "tunnel" {
				cores = append(cores, lane.Core)
			}
		}
		return cores
	}
	rig.Until(t, "the tunnel stage is where the NIC is not polled", func() (bool, string) {
		return slices.Equal(tunnelOn(), []int{away}), fmt.Sprintf("cores %v, NIC on %d", tunnelOn(), home)
	})
	for i := range 10 {
		poll([]int{away, home}[i%2])
		time.Sleep(200 * time.Millisecond) // the pace of what is tested, not a wait
	}
	if n := anew(); n > 1 {
		t.Errorf("placed anew %d times\n%s", n, d.Log())
	}
	poll(away)
	rig.Until(t, "the placement follows", func() (bool, string) {
		return slices.Equal(tunnelOn(), []int{home}), fmt.Sprint(tunnelOn())
	})
	d.Acting()
	l.GoesOn()
	if n := anew(); n > 2 {
		t.Errorf("placed anew %d times\n%s", n, d.Log())
	}
	ends(t, d)
	// What an administrator moves is not guarded.
	overtaken(t, l.Stop(), 12)
}

// A profile that is applied over and over is noticed once.
func TestMasksWrittenOverAndOverAreNoticedOnce(t *testing.T) {
	speed.Long(t)
	b := lab(t, bed.Options{Pods: 2})
	d, l := start(t, b)
	pod := b.Receiver().Pods[1]
	t.Cleanup(func() { rig.SetQueue(t, pod.NS, bed.PodDev, "rps_cpus", "0") })
	// The last is not what overlane has written, which is 3: a daemon that looks seldom has seen no other.
	for i := range 10 {
		rig.SetQueue(t, pod.NS, bed.PodDev, "rps_cpus", []string{"3", "1"}[i%2])
		time.Sleep(150 * time.Millisecond) // the pace of what is tested, not a wait
	}
	saysManual(t, d, bed.PodDev, "by another program")
	d.Acting()
	d.Says("pipeline is taken off")
	if n := strings.Count(d.Log(), "pipeline is taken off"); n != 1 {
		t.Errorf("%d decisions for one foreign program:\n%s", n, d.Log())
	}
	if now := rig.Mask(t, pod.NS, bed.PodDev); now != "1" {
		t.Errorf("the mask is %q, was set to 1 by another program", now)
	}
	l.GoesOn()
	ends(t, d)
	overtaken(t, l.Stop(), 11)
}
