// SPDX-License-Identifier: Apache-2.0

package order

import (
	"maps"
	"slices"
	"testing"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// few are runs of which each CI run has a third: each scene with each tier, each kind of NIC,
// one flow and several, and with loss, but not each with each.
var few = []run{
	{bed.Bridged, bed.Thread, tc, steady, 8, paced},
	{bed.Bridged, bed.Thread, tc, resteered, 1, paced},
	{bed.Bridged, bed.Thread, tc, resteered, 8, lossy},
	{bed.Bridged, bed.Thread, tc, toggled, 8, paced},
	{bed.Bridged, bed.Thread, tc, shrunk, 8, lossy},
	{bed.Bridged, bed.Thread, piped, toggled, 8, paced},
	{bed.Bridged, bed.Thread, xdp, steady, 1, lossy},
	{bed.Bridged, bed.Thread, xdp, resteered, 8, paced},
	{bed.Bridged, bed.Thread, xdp, toggled, 8, lossy},
	{bed.Bridged, bed.Thread, xdp, shrunk, 8, paced},
	{bed.Bridged, bed.Thread, tc, resteered, 8, flooded},
	{bed.Bridged, bed.Thread, xdp, resteered, 8, flooded},
	{bed.Bridged, bed.Softirq, tc, steady, 1, lossy},
	{bed.Bridged, bed.Softirq, tc, resteered, 8, paced},
	{bed.Bridged, bed.Softirq, tc, toggled, 8, lossy},
	{bed.Bridged, bed.Softirq, tc, shrunk, 8, paced},
	{bed.Bridged, bed.Softirq, xdp, steady, 8, paced},
	{bed.Bridged, bed.Softirq, xdp, resteered, 1, lossy},
	{bed.Bridged, bed.Softirq, xdp, toggled, 8, paced},
	{bed.Bridged, bed.Softirq, xdp, shrunk, 8, lossy},
	{bed.Routed, bed.Thread, tc, resteered, 8, paced},
	{bed.Nested, bed.Softirq, xdp, resteered, 8, lossy},
}

// all are the runs of the long version.
func all() (runs []run) {
	for _, topology := range []bed.Topology{bed.Bridged, bed.Routed, bed.Nested} {
		for _, nic := range []bed.NIC{bed.Thread, bed.Softirq} {
			for _, by := range []means{tc, xdp} {
				for _, scene := range []scene{steady, resteered, toggled, shrunk} {
					for _, flows := range []int{1, 8, 64} {
						for _, l := range []load{paced, lossy, flooded} {
							runs = append(runs, run{topology, nic, by, scene, flows, l})
						}
					}
				}
			}
		}
	}
	return runs
}

// others are runs of what takes more cores, or another kernel, than every CI run has.
func others() (runs []run) {
	for _, by := range slices.Sorted(maps.Keys(mechanisms)) {
		scenes, loads, flows := []scene{steady, toggled}, []load{paced, lossy, open, flooded}, 8
		switch {
		case mechanisms[by].name == "pipeline":
			scenes = []scene{unplugged} // TestOrder has the rest
		case mechanisms[by].name == "express":
			// What drops packets on purpose is a program on the tunnel: none goes past that.
			loads = []load{paced, open, flooded}
			if by == expressed {
				flows = 80 // each changes its way but once when it is switched
			}
		}
		for _, scene := range scenes {
			for _, l := range loads {
				if by != unordered || *broken {
					runs = append(runs, run{bed.Bridged, bed.Thread, by, scene, flows, l})
				}
			}
		}
	}
	return runs
}

// Packets of a flow arrive in order and once, and drops are counted, whatever
// the pipeline is made to do.
func TestOrder(t *testing.T) {
	runs := few
	if *complete {
		runs = all()
	}
	inBeds(t, runs)
}

// The same holds for whatever else acts, and on cores that come and go: on machines that have what it
// takes (test/manycore).
func TestOrderOfOthers(t *testing.T) {
	if !*machine {
		t.Skip("needs a machine of its own: test/manycore")
	}
	inBeds(t, others())
}

func inBeds(t *testing.T, runs []run) {
	turn := speed.Every(t, 3)
	runs = slices.DeleteFunc(slices.Clone(runs), func(run) bool { return !turn() })
	// One bed at a time: those that run later would only take memory.
	for len(runs) > 0 {
		first, mine := runs[0], 0
		for mine < len(runs) && runs[mine].topology == first.topology && runs[mine].nic == first.nic {
			mine++
		}
		t.Run(string(first.topology)+"-"+string(first.nic), func(t *testing.T) {
			b := rig.Lab(t, bed.Options{Topology: first.topology, NIC: first.nic, Queues: *queues})
			for _, r := range runs[:mine] {
				t.Run(r.String(), func(t *testing.T) { r.in(t, b) })
			}
		})
		runs = runs[mine:]
	}
}
