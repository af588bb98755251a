// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"slices"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/trial"
)

// total reads what counts for a trial, of the given cores or, if there are none, of all.
func (d *Daemon) total(s trial.Share, only []int) (t trial.Totals, err error) {
	cores, err := d.dp.Cores()
	if err != nil {
		return t, err
	}
	t.Came = d.came(cores)
	counts := func(core int) bool { return only == nil || slices.Contains(only, core) }
	for i := range cores {
		t.Polled += cores[i].Packets[datapath.NIC]
		if !counts(i) {
			continue
		}
		t.Waited += cores[i].WaitedNs
		t.Queued += cores[i].QueuedNs
		for st := range datapath.Stages {
			t.NS[st] += cores[i].StageNs[st]
			t.Busy[st] += cores[i].StagePackets[st]
			t.All[st] += cores[i].Packets[st]
		}
	}
	drops, err := d.backlogs.Drops()
	if err != nil {
		return t, err
	}
	for core, n := range drops {
		if counts(core) {
			t.Dropped += n
		}
	}
	c, err := d.dp.Counters()
	if err != nil {
		return t, err
	}
	lost, err := d.mechs.drops(c)
	if err != nil {
		return t, err
	}
	t.Dropped += lost
	if t.Acted, t.Could, err = s(c); err != nil {
		return t, err
	}
	if only != nil {
		overlay, err := d.dp.OverlayOn()
		if err != nil {
			return t, err
		}
		t.Could = 0
		for _, core := range only {
			t.Could += overlay[core]
		}
	}
	t.At = time.Now()
	return t, nil
}
