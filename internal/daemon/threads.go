// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/napi"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// eager is the nice value of a NIC's threads: they preempt bulk lanes, and what a
// thread leaves of a core is all that others get.
const eager = -20

// threadNAPI has a NIC polled by threads, each on a core of its own: a softirq runs in
// the time of whatever it interrupts, bulk lanes among them, and so may keep these
// from getting on at all. A thread that moved from core to core would leave a flow's
// frames in two lanes.
func (d *Daemon) threadNAPI(u node.Underlay) error {
	set, err := d.scanner.Settings(u.Dev)
	if err != nil {
		return err
	}
	t := target(u.Dev)
	var steps []plan.Step
	if !set.Threaded {
		steps = append(steps, plan.Step{Setting: plan.Setting{Target: t, Kind: plan.SysfsAttr, Attr: "threaded"},
			Was: "0", First: "0", Want: "1", Reason: "the NIC's polls preempt bulk"})
	}
	if err := d.carryOut(steps); err != nil {
		return err
	}
	steps = nil
	threads, err := d.napiThreads(u.Dev, len(set.RPSCPUs))
	if err != nil {
		return err
	}
	for i, id := range threads {
		was, err := apply.SchedOf(id)
		if err != nil {
			return err
		}
		want := was
		if len(was.Cores) != 1 {
			want.Cores = []int{d.cores[i%len(d.cores)]}
		}
		// Who has set something else knows why.
		if was.Policy == "other" && was.Nice == 0 {
			want.Nice = eager
		}
		if want.String() == was.String() {
			continue
		}
		steps = append(steps, plan.Step{Setting: plan.Thread(t, id), Was: was.String(), First: was.String(), Want: want.String(),
			Reason: "the NIC's polls preempt bulk, each on a core of its own"})
	}
	return d.carryOut(steps)
}

func (d *Daemon) napiThreads(dev node.Dev, queues int) (ids []plan.ThreadID, err error) {
	ns, err := d.scanner.Namespace(dev.NetnsCookie)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	err = ns.Do(func() error {
		tids, err := napi.Threads(dev.Ifindex, queues)
		if err != nil {
			return err
		}
		if len(tids) == 0 {
			return fmt.Errorf("no thread polls %s", dev)
		}
		for _, tid := range tids {
			id, err := apply.IdentifyThread(tid)
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return nil
	})
	return ids, err
}

// carryOut makes priority's settings; the pipeline makes its own.
func (d *Daemon) carryOut(steps []plan.Step) error {
	if len(steps) == 0 {
		return nil
	}
	at := newSpaces(d.scanner)
	rep, err := d.locked.Do(at, steps)
	for _, r := range rep.Results {
		d.log.Debug("setting", "result", r.String())
	}
	return errors.Join(err, at.Close())
}

// ofPriority tells whether a setting is priority's.
func ofPriority(s plan.Setting) bool { return s.Kind == plan.ThreadSched || s.Attr == "threaded" }

// restoreThreads takes all of that back.
func (d *Daemon) restoreThreads() (apply.Report, error) {
	at := newSpaces(d.scanner)
	rep, err := d.locked.RestoreIf(at, ofPriority)
	for _, r := range rep.Results {
		if r.Outcome != apply.Restored {
			d.log.Warn("setting not restored", "result", r.String())
		}
	}
	return rep, errors.Join(err, at.Close())
}
