// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"slices"

	"github.com/overlane/overlane/internal/plan"
)

// Outcome is what became of one setting.
type Outcome string

const (
	// Applied: the wanted value was written and read back.
	Applied Outcome = "applied"
	// Already: the wanted value was there; nothing was written.
	Already Outcome = "already so"
	// Restored: the value first seen was written and read back.
	Restored Outcome = "restored"
	// Untouched: the value first seen was still, or again, there.
	Untouched Outcome = "as first seen"
	// LeftAlone: the setting has a value that overlane did not write.
	LeftAlone Outcome = "left alone"
	// Gone: namespace, device, attribute or thread exists no more.
	Gone Outcome = "gone"
	// Kept: the value could not be brought back; it stays in the journal.
	Kept Outcome = "not restored"
	// Refused: it could not be written, and so nothing of its device was.
	Refused Outcome = "refused"
)

// Result is the outcome of one setting, with the reason where there is one.
type Result struct {
	plan.Setting
	Outcome Outcome `json:"outcome"`
	// From and To are the values before and after, where they were read.
	From   string `json:"from,omitempty"`
	To     string `json:"to,omitempty"`
	Reason string `json:"reason,omitempty"`
}

func (r Result) String() string {
	s := fmt.Sprintf("%s: %s", r.Setting, r.Outcome)
	if r.From != r.To {
		s += fmt.Sprintf(" (%s -> %s)", r.From, r.To)
	}
	if r.Reason != "" {
		s += ": " + r.Reason
	}
	return s
}

// Report lists what became of every setting, in the order of the work.
type Report struct {
	Results []Result `json:"results"`
	// Damaged counts journal records that could not be read. A record torn
	// by a crash is not among them: its setting was never written.
	Damaged int `json:"damaged,omitempty"`
}

// Add puts another report of the same journal behind this one: each counts the same damaged records.
func (r *Report) Add(o Report) {
	r.Results, r.Damaged = append(r.Results, o.Results...), max(r.Damaged, o.Damaged)
}

// refuse makes the results those of steps that were refused, all but what was Kept.
func (r *Report) refuse(steps []plan.Step, why error) {
	kept := slices.DeleteFunc(r.Results, func(res Result) bool { return res.Outcome != Kept })
	r.Results = kept
	for _, s := range steps {
		if !slices.ContainsFunc(kept, func(res Result) bool { return res.Setting == s.Setting }) {
			r.Results = append(r.Results, Result{Setting: s.Setting, Outcome: Refused, Reason: why.Error()})
		}
	}
}

// Count returns how many settings had the outcome.
func (r Report) Count(o Outcome) int {
	n := 0
	for _, res := range r.Results {
		if res.Outcome == o {
			n++
		}
	}
	return n
}

// Left is an error that names what is still in the journal, as the last that was reported of it is Kept.
func (r Report) Left() error {
	last := make(map[plan.Setting]Result)
	for _, res := range r.Results {
		last[res.Setting] = res
	}
	var errs []error
	for _, res := range r.Results {
		if res.Outcome == Kept && last[res.Setting] == res {
			errs = append(errs, errors.New(res.String()))
			delete(last, res.Setting)
		}
	}
	return errors.Join(errs...)
}

// ErrNotRestored is returned by Do while the journal holds settings that an
// earlier process left behind and that Restore has not looked at.
var ErrNotRestored = errors.New("the journal of an earlier run is not restored yet")

// ErrUnlocked is returned by the methods of a Locked after Unlock.
var ErrUnlocked = errors.New("the lock is released")

// ErrUnseen is that of a Namespaces that does not search: a namespace that it does not know may exist. Do passes over
// its settings; Restore keeps them.
var ErrUnseen = errors.New("network namespace is not seen")

// ErrNoNamespace means that a network namespace exists no more.
var ErrNoNamespace = errors.New("network namespace is gone")
