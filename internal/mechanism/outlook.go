// SPDX-License-Identifier: Apache-2.0

package mechanism

import (
	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/config"
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

	// Prioritised and Polled are what priority finds, which looks before the pipeline: that it acts without a trial,
	// and which cores threads of NICs are bound to, or will be.
	Prioritised bool
	Polled      []int
}

// Owned are the settings that a mechanism has changed.
func (v *View) Owned(by plan.Owner) map[plan.Setting]plan.Owned { return apply.Owned(v.Changed, by) }

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
