// SPDX-License-Identifier: Apache-2.0

package mechanism

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/probe"
	"github.com/overlane/overlane/internal/xdp"
)

// View is a node as `overlane plan` finds it, without being the daemon.
type View struct {
	Scanner  *node.Scanner
	Snapshot node.Snapshot
	Features []probe.Feature
	Places   *xdp.Places
	// Changed is what overlane has changed here, and Owns tells of a BPF program that it is a running daemon's.
	Changed []apply.Entry
	Owns    func(progID uint32) bool
	// Cores are those that flows may be steered to, sorted; Receives has received most of all cores since boot.
	Cores    []int
	Receives int
	Topology governor.Topology
	// Placed is where the stages go on by a running daemon, nil without one.
	Placed *governor.Layout

	// Prioritised and Polled are what priority finds, which looks before express and the pipeline: the underlays that
	// have its program without a trial, or will (nil: none), and which cores threads of NICs are bound to, or will be.
	Prioritised map[node.DevKey]bool
	Polled      []int
	// Express are the pods' ends whose packets come straight from the NIC without a trial, or will. Express looks before
	// the pipeline.
	Express map[node.DevKey]bool
}

// Owned are the settings that a mechanism has changed.
func (v *View) Owned(by plan.Owner) map[plan.Setting]plan.Owned { return apply.Owned(v.Changed, by) }

// Missing are the programs of a plan that no running daemon has attached yet.
func (v *View) Missing(planned []plan.Attachment) []plan.Attachment {
	there := map[Hook]bool{}
	for key, found := range foreign.On(v.Scanner, v.Snapshot) {
		for _, p := range found.Programs {
			if v.Owns(p.ID) {
				there[inKernel(Hook{key, p.Name})] = true
			}
		}
	}
	for _, u := range v.Snapshot.Underlays {
		if v.Hooked(u) {
			there[inKernel(Hook{u.Key(), foreign.ProgramName(u.XDPProgID)})] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(planned), func(at plan.Attachment) bool { return there[inKernel(HookOf(at))] })
}

// Hooked tells whether a running daemon has an XDP program on an underlay.
func (v *View) Hooked(u node.Underlay) bool { return u.XDPProgID != 0 && v.Owns(u.XDPProgID) }

// inKernel has as much of the program's name as the kernel keeps. What was read of a program has all of it where its
// BTF could be read.
func inKernel(h Hook) Hook {
	h.Program = h.Program[:min(len(h.Program), unix.BPF_OBJ_NAME_LEN-1)]
	return h
}

// Outlook is what a mechanism would change on a node.
type Outlook struct {
	// Name is the mechanism's, as in a status.
	Name string `json:"-"`
	plan.Plan
	// Placement is which cores the stages go on on, none while the pipeline is off; nil: the mechanism has no stages.
	Placement *Placement `json:"placement,omitempty"`
	// When says under which condition `run` carries the plan out.
	When string `json:"when"`
}

// Placement is which cores the stages go on on, and by what they were chosen.
type Placement struct {
	NIC    config.CPUList `json:"nic"`
	Tunnel config.CPUList `json:"tunnel"`
	Pod    config.CPUList `json:"pod"`
	Reason string         `json:"reason"`
}
