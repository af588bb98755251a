// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/overlane/overlane/internal/plan"
)

// job is a step that is going to be written.
type job struct {
	step   plan.Step
	at     *settingPlace
	before string
	old    *Entry // what the journal said before, nil if nothing
	result int    // index into the report
}

// Do carries out the steps in order, all or none: if one cannot be carried
// out, those before it are undone in the reverse order and the error says
// why. All settings are journalled before the first is written; a journal
// that cannot be written means that nothing is.
//
// A setting that another program has changed since it was planned is left
// alone, and a device that has gone is passed over; neither is an error.
func (l *Locked) Do(ns Namespaces, steps []plan.Step) (Report, error) {
	return l.do(ns, steps, func(k *kernel, rep *Report) error {
		w := &whole{steps: steps}
		err := l.carryOut(k, w)
		*rep = w.rep
		return errors.Join(w.refused, err)
	})
}

// DoEach is Do for each device by itself: where a step of one cannot be carried out, or an earlier change could
// not be undone, all of that device's are Refused, with the reason, and the others are carried out.
func (l *Locked) DoEach(ns Namespaces, steps []plan.Step) (Report, error) {
	var order []plan.Target
	of := make(map[plan.Target][]plan.Step)
	for _, s := range steps {
		if of[s.Target] == nil {
			order = append(order, s.Target)
		}
		of[s.Target] = append(of[s.Target], s)
	}
	return l.do(ns, steps, func(k *kernel, rep *Report) error {
		var each []*whole
		for _, target := range order {
			each = append(each, &whole{steps: of[target], refused: l.kept(of[target])})
		}
		err := l.carryOut(k, each...)
		for _, w := range each {
			if w.refused != nil {
				w.rep.refuse(w.steps, w.refused)
			}
			rep.Add(w.rep)
		}
		return err
	})
}

func (l *Locked) do(ns Namespaces, steps []plan.Step, fn func(*kernel, *Report) error) (rep Report, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.told(&rep)
	switch {
	case l.f == nil:
		return rep, ErrUnlocked
	case l.unseen:
		return rep, ErrNotRestored
	}
	if err := plan.ValidateSteps(steps); err != nil {
		return rep, fmt.Errorf("check plan: %w", err)
	}
	k := newKernel(ns)
	defer k.close()
	err = fn(k, &rep)
	l.shut(k, &rep)
	return rep, err
}

// whole is what is carried out as a whole, or not at all.
type whole struct {
	steps   []plan.Step
	jobs    []job
	rep     Report
	refused error // why it is not
}

// carryOut carries out each of them that is not refused yet. All that they change is journalled in one go before the
// first of it is written: each time waits for the disk. The error is that the journal cannot be written.
func (l *Locked) carryOut(k *kernel, each ...*whole) error {
	var entries []Entry
	for _, w := range each {
		if w.refused == nil {
			var news []Entry
			news, w.refused = l.prepare(k, w)
			entries = append(entries, news...)
		}
	}
	if len(entries) == 0 {
		return nil
	}
	if err := l.j.add(entries); err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	for _, w := range each {
		if w.refused == nil {
			w.refused = l.writeAll(w)
		}
	}
	return nil
}

// prepare decides what is to be written, and returns what has to be in the journal before. It changes nothing.
func (l *Locked) prepare(k *kernel, w *whole) (entries []Entry, refused error) {
	if w.jobs, refused = l.look(k, w.steps, &w.rep); refused != nil {
		return nil, refused
	}
	places := make([]*settingPlace, len(w.jobs))
	for i, j := range w.jobs {
		places[i] = j.at
	}
	if entries, refused = k.announce(places); refused != nil {
		return nil, refused
	}
	for _, j := range w.jobs {
		entries = append(entries, j.entry())
	}
	return entries, nil
}

// writeAll writes what was prepared, or takes it back.
func (l *Locked) writeAll(w *whole) (refused error) {
	for i := range w.jobs {
		if err := w.jobs[i].write(&w.rep); err != nil {
			refused = fmt.Errorf("set %s to %s: %w", w.jobs[i].step.Setting, w.jobs[i].step.Want, err)
			return errors.Join(refused, l.rollBack(w.jobs, i, &w.rep))
		}
	}
	l.settle(w.jobs, w.rep)
	return nil
}

// look finds every setting and decides what is to be written. It changes
// nothing.
func (l *Locked) look(k *kernel, steps []plan.Step, rep *Report) ([]job, error) {
	var jobs []job
	for _, step := range steps {
		res := Result{Setting: step.Setting}
		old := l.j.find(step.Setting)
		want := Entry{Setting: step.Setting}
		if old != nil {
			want = *old
		}
		at, err := k.find(want)
		var value string
		if err == nil {
			if value, err = at.get(); err != nil && at.left() {
				err = errGone
			}
		}
		if certainlyGone(err) || errors.Is(err, errOther) || errors.Is(err, ErrUnseen) {
			res.Outcome, res.Reason = Gone, err.Error()
			rep.Results = append(rep.Results, res)
			continue
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: this kernel or driver has no such setting", step.Setting)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", step.Setting, err)
		}
		res.From, res.To = value, value
		if reason := leaveAlone(step, old, value); reason != "" {
			res.Outcome, res.Reason = LeftAlone, reason
		} else if step.Same(value, step.Want) {
			res.Outcome = Already
		} else {
			jobs = append(jobs, job{step: step, at: at, before: value, old: old, result: len(rep.Results)})
		}
		rep.Results = append(rep.Results, res)
	}
	return jobs, nil
}

// kept is an error if one of the settings was not brought back: it has not the value that its mechanism counts on.
func (l *Locked) kept(steps []plan.Step) error {
	for _, step := range steps {
		if old := l.j.find(step.Setting); old != nil && old.Kept != "" {
			return errors.New(leaveAlone(step, old, ""))
		}
	}
	return nil
}

// leaveAlone says why a setting with the given value is not overlane's to
// change, "" if it is.
func leaveAlone(step plan.Step, old *Entry, value string) string {
	switch {
	case old != nil && old.Kept != "":
		return "an earlier change could not be undone: " + old.Kept
	case old != nil && old.By != step.By:
		return fmt.Sprintf("%s has changed it", cmp.Or(string(old.By), "an earlier overlane"))
	case old != nil && step.Unbound && step.Same(value, step.Was):
		return ""
	case old != nil && !step.Same(value, old.Wrote):
		return fmt.Sprintf("changed by another program from %s to %s", old.Wrote, value)
	case old == nil && step.Was != "" && !step.Same(value, step.Was) && !step.Same(value, step.Want):
		return fmt.Sprintf("changed by another program from %s to %s since it was planned", step.Was, value)
	}
	return ""
}

// entry is what has to be in the journal before the job is written.
func (j job) entry() Entry {
	e := Entry{Setting: j.step.Setting, By: j.step.By, Inode: j.at.inode, Addr: j.at.addr, First: j.before}
	if j.old != nil {
		e = *j.old
		e.Prev = j.before
	}
	e.Wrote = j.step.Canonical(j.step.Want)
	return e
}

// write writes the job, unless another program was faster or the device has gone.
func (j job) write(rep *Report) error {
	res := &rep.Results[j.result]
	at("write:before")
	value, err := j.at.get()
	if err == nil && !j.step.Same(value, j.before) {
		res.Outcome, res.To = LeftAlone, value
		res.Reason = "changed by another program while the plan was carried out"
		return nil
	}
	if err == nil {
		err = j.at.put(j.step.Want)
	}
	if err != nil && j.at.left() {
		res.Outcome, res.Reason = Gone, "device went while the plan was carried out"
		return nil
	}
	if err != nil {
		return err
	}
	at("write:after")
	res.Outcome, res.To = Applied, j.step.Canonical(j.step.Want)
	return nil
}

// settle drops the entries of settings that have their first value (again)
// or that were not written after all.
func (l *Locked) settle(jobs []job, rep Report) {
	drop := make(map[plan.Setting]bool)
	for _, j := range jobs {
		e := l.j.find(j.step.Setting)
		drop[e.Setting] = rep.Results[j.result].Outcome != Applied || e.Same(e.Wrote, e.First)
	}
	l.drop(func(e Entry) bool { return drop[e.Setting] })
}

// drop takes entries out of the journal, if there are any to take out.
func (l *Locked) drop(which func(Entry) bool) {
	if kept := slices.DeleteFunc(slices.Clone(l.j.entries), which); len(kept) < len(l.j.entries) {
		l.j.rewrite(kept)
	}
}

// rollBack brings back what the jobs found, from the one that failed to the
// first. What cannot be brought back stays in the journal, for Restore: the error says so.
func (l *Locked) rollBack(jobs []job, failed int, rep *Report) error {
	var errs []error
	entries := slices.Clone(l.j.entries)
	for i, j := range slices.Backward(jobs) {
		res := &rep.Results[j.result]
		var err error
		if i == failed || i < failed && res.Outcome == Applied {
			err = j.takeBack(i == failed, res)
		}
		n := l.j.index[j.step.Setting]
		switch {
		case err != nil:
			err = fmt.Errorf("take back %s: %w", j.step.Setting, err)
			errs = append(errs, err)
			entries[n].Kept = err.Error()
		case j.old != nil:
			entries[n] = *j.old
		default:
			entries[n].First, entries[n].Wrote, entries[n].Prev = "", "", "" // marks it for removal
		}
	}
	entries = slices.DeleteFunc(entries, func(e Entry) bool { return e.First == "" && e.Wrote == "" })
	l.j.rewrite(entries)
	return errors.Join(errs...)
}

// takeBack undoes one write. A write that failed may have left any value
// behind; a value that stands where ours should be is another program's.
func (j job) takeBack(failed bool, res *Result) error {
	at("undo:before")
	value, err := j.at.get()
	switch {
	case err != nil && j.at.left():
		res.Outcome = Gone
		return nil
	case err != nil:
		res.Outcome, res.Reason = Kept, err.Error()
		return err
	case j.step.Same(value, j.before):
		res.Outcome, res.To = Untouched, value
		return nil
	case !failed && !j.step.Same(value, j.step.Want):
		res.Outcome, res.To = LeftAlone, value
		res.Reason = "changed by another program while the plan was taken back"
		return nil
	}
	if err := j.at.putBack(j.before); err != nil {
		res.Outcome, res.Reason = Kept, err.Error()
		return err
	}
	at("undo:after")
	res.Outcome, res.To = Restored, j.before
	return nil
}
