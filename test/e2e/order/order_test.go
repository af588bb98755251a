// SPDX-License-Identifier: Apache-2.0

package order

import (
	"testing"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
)

// few are the runs of every CI run: each scene with each tier, each kind of NIC,
// one flow and several, and with loss, but not each with each.
var few = []run{
	{bed.Bridged, bed.Thread, config.TierTC, steady, 8, paced},
	{bed.Bridged, bed.Thread, config.TierTC, resteered, 1, paced},
	{bed.Bridged, bed.Thread, config.TierTC, resteered, 8, lossy},
	{bed.Bridged, bed.Thread, config.TierTC, toggled, 8, paced},
	{bed.Bridged, bed.Thread, config.TierTC, shrunk, 8, lossy},
	{bed.Bridged, bed.Thread, config.TierXDP, steady, 1, lossy},
	{bed.Bridged, bed.Thread, config.TierXDP, resteered, 8, paced},
	{bed.Bridged, bed.Thread, config.TierXDP, toggled, 8, lossy},
	{bed.Bridged, bed.Thread, config.TierXDP, shrunk, 8, paced},
	{bed.Bridged, bed.Thread, config.TierTC, resteered, 8, flooded},
	{bed.Bridged, bed.Thread, config.TierXDP, resteered, 8, flooded},
	{bed.Bridged, bed.Softirq, config.TierTC, steady, 1, lossy},
	{bed.Bridged, bed.Softirq, config.TierTC, resteered, 8, paced},
	{bed.Bridged, bed.Softirq, config.TierTC, toggled, 8, lossy},
	{bed.Bridged, bed.Softirq, config.TierTC, shrunk, 8, paced},
	{bed.Bridged, bed.Softirq, config.TierXDP, steady, 8, paced},
	{bed.Bridged, bed.Softirq, config.TierXDP, resteered, 1, lossy},
	{bed.Bridged, bed.Softirq, config.TierXDP, toggled, 8, paced},
	{bed.Bridged, bed.Softirq, config.TierXDP, shrunk, 8, lossy},
	{bed.Routed, bed.Thread, config.TierTC, resteered, 8, paced},
	{bed.Nested, bed.Softirq, config.TierXDP, resteered, 8, lossy},
}

// all are the runs of the long version.
func all() (runs []run) {
	for _, topology := range []bed.Topology{bed.Bridged, bed.Routed, bed.Nested} {
		for _, nic := range []bed.NIC{bed.Thread, bed.Softirq} {
			for _, tier := range []config.Tier{config.TierTC, config.TierXDP} {
				for _, scene := range []scene{steady, resteered, toggled, shrunk} {
					for _, flows := range []int{1, 8} {
						for _, l := range []load{paced, lossy, flooded} {
							runs = append(runs, run{topology, nic, tier, scene, flows, l})
						}
					}
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
