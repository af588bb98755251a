// SPDX-License-Identifier: Apache-2.0

// Package plan turns what was observed on a node and what is wanted into an
// ordered list of steps, each of which can be undone. It does no I/O: the
// same input gives the same plan, and `overlane plan` prints exactly what
// `overlane run` would do.
package plan

import (
	"errors"
	"fmt"
)

// Owner is the mechanism that has changed a setting, and alone brings it back.
type Owner string

// Owners, as status names them. Micro-flows are placed by the pipeline.
const (
	ByAggregation Owner = "aggregate"
	ByExpress     Owner = "express"
	ByBridging    Owner = "bridge-netfilter"
	ByPipeline    Owner = "pipeline"
	ByPriority    Owner = "priority"
)

// of has a mechanism own the steps.
func of(by Owner, steps []Step) []Step {
	for i := range steps {
		steps[i].By = by
	}
	return steps
}

// Step changes one setting.
type Step struct {
	Setting
	By Owner `json:"by"`
	// Was is the value on which the decision rests. A caller that carries the
	// step out leaves the setting alone if it has another value by then.
	Was string `json:"was"`
	// First is the value that undo brings back: Was, unless overlane has
	// changed the setting before.
	First string `json:"undo"`
	Want  string `json:"want"`
	// Unbound tells that Was is not what overlane wrote, and no other program's
	// doing either: the core went offline that a thread was bound to.
	Unbound bool `json:"unbound,omitempty"`
	// Reason is shown as it is in plan, status and log.
	Reason string `json:"reason"`
}

// Attachment is a BPF program on a hook. It is attached by a link that ends with
// the process, so it needs no undo of its own.
type Attachment struct {
	Target
	Program string `json:"program"`
	Hook    string `json:"hook"`
	// Steers is the stage whose core the program decides. Where no device
	// of that stage can be steered, the program is not attached. Empty:
	// the program is attached in any case.
	Steers Stage  `json:"steers,omitempty"`
	Reason string `json:"reason"`
	// Serves is the tunnel or the pod whose packets it acts on, if any. Where no packet that is steered comes to that,
	// the program is not attached; where it is left alone, Instead is, if there is one.
	Serves  Target      `json:"-"`
	Instead *Attachment `json:"-"`
}

// Skip is something that overlane leaves alone, with the reason.
type Skip struct {
	What   string `json:"what"`
	Reason string `json:"reason"`
	// Target is the device that is left alone, empty where What is none.
	Target Target `json:"target,omitzero"`
}

// Whole tells that What is the device itself, not something that would be on it.
func (s Skip) Whole() bool { return s.What == s.Target.String() }

// Plan is what `overlane run` would do: first the steps, then the attachments.
// Nothing is steered before its mask is in place. Two programs are in no plan: ol_merged_in at the other end of a
// resequencer, a device that a step makes, and ol_tunnel_census on tunnels while a census counts, for some seconds.
type Plan struct {
	Steps []Step `json:"steps"`
	// Future are threads that come with the steps; nil: none can.
	Future  []FutureThreads `json:"future_threads,omitzero"`
	Attach  []Attachment    `json:"attach"`
	Skipped []Skip          `json:"skipped"`
	// ProgramsFirst: they are attached before the steps, not after them.
	ProgramsFirst bool `json:"-"`
}

// Empty reports whether the plan changes nothing.
func (p Plan) Empty() bool { return len(p.Steps) == 0 && len(p.Attach) == 0 }

// ValidateSteps rejects a list of which a part could not be carried out or
// undone in order.
func ValidateSteps(steps []Step) error {
	seen := make(map[Setting]bool, len(steps))
	for i, s := range steps {
		err := s.Validate()
		switch {
		case err != nil:
		case s.Want == "":
			err = errors.New("no value wanted")
		case s.By == "":
			err = errors.New("no mechanism owns the step")
		case s.Kind == Superblock:
			err = errors.New("a superblock is changed for as long as attributes are written, and by no step")
		case seen[s.Setting]:
			err = errors.New("the setting occurs twice in the plan")
		}
		if err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, s.Setting, err)
		}
		seen[s.Setting] = true
	}
	return nil
}
