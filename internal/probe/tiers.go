// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"

	"github.com/overlane/overlane/internal/shell"
)

// Tier is a step of what a node can get.
type Tier struct {
	Number  int    `json:"tier"`
	Name    string `json:"name"`
	Reached bool   `json:"reached"`
	// Reason is the one thing that keeps the tier away, or what a tier that
	// is reached has to do without; Remedy is the one command for it.
	Reason string     `json:"reason,omitempty"`
	Remedy shell.Line `json:"remedy,omitzero"`
}

// Tiers says which tiers the features allow. Each stands on the one before, but for merge: flows
// may be cut behind the NIC's stage as well.
func Tiers(feats []Feature) []Tier {
	tiers := []Tier{
		{Number: 0, Name: "settings"},
		{Number: 1, Name: "tc"},
		{Number: 2, Name: "xdp"},
		{Number: 3, Name: "merge"},
	}
	tiers[0].need(feats, Kernel)
	tiers[1].need(feats, Kernel, BTF, KernelRead, TCX, RPS, TracepointBT, SoftnetData, OrderGuard)
	tiers[2].on(tiers[1]).need(feats, CPUMap, NativeXDP)
	merge := tiers[3].on(tiers[1])
	merge.need(feats, BPFQdisc)
	if merge.Reached && !tiers[2].Reached {
		merge.Reason = "flows are cut behind the NIC's stage: tier 2 (xdp) needs " + tiers[2].Reason
	}

	if t := &tiers[2]; t.Reached {
		without(feats, CPUMapGRO, "without GRO behind the split: ", &t.Reason, &t.Remedy)
	}
	return tiers
}

// Mechanism is something that overlane does, beside the pipeline, which the tiers
// are about.
type Mechanism struct {
	Name     string `json:"name"`
	Possible bool   `json:"possible"`
	// Reason is the one thing that keeps it away, or what it has to do without;
	// Remedy is the one command for it.
	Reason string     `json:"reason,omitempty"`
	Remedy shell.Line `json:"remedy,omitzero"`
}

// Mechanisms says which mechanisms the features allow.
func Mechanisms(feats []Feature) []Mechanism {
	needs := func(name string, ids ...ID) Mechanism {
		var t Tier
		t.need(feats, ids...)
		return Mechanism{name, t.Reached, t.Reason, t.Remedy}
	}
	atNIC := []ID{Kernel, BTF, KernelRead, TracepointBT, SoftnetData, OrderGuard, CPUMap, NativeXDP}
	priority := needs("priority", atNIC...)
	if priority.Possible {
		// The worst lack comes last.
		without(feats, CPUMapGRO, "TCP bulk costs more while latency traffic is about, without GRO in its lane: ", &priority.Reason, &priority.Remedy)
		without(feats, ThreadedNAPI, "bulk may starve under overload, since the NIC is polled in softirq: ", &priority.Reason, &priority.Remedy)
	}
	return []Mechanism{priority, needs("aggregate", Kernel, KernelRead, TCX, UDPGRO), needs("express", atNIC...)}
}

// without says what a tier or a mechanism has to do without.
func without(feats []Feature, id ID, what string, reason *string, remedy *shell.Line) {
	for _, f := range pick(feats, id) {
		if f.State != Supported {
			*reason, *remedy = what+f.Reason, f.Remedy
		}
	}
}

// on makes a tier depend on the one below.
func (t *Tier) on(below Tier) *Tier {
	if !below.Reached {
		t.Reason = fmt.Sprintf("needs tier %d: %s", below.Number, below.Reason)
		t.Remedy = below.Remedy
	}
	return t
}

// need reaches the tier if all features are there, on one NIC at least.
func (t *Tier) need(feats []Feature, ids ...ID) {
	if t.Reason != "" {
		return
	}
	for _, id := range ids {
		if f, ok := best(feats, id); !ok {
			t.Reason, t.Remedy = missing(f), f.Remedy
			return
		}
	}
	t.Reached = true
}

// best returns the answer that says most for a feature, and whether that is
// enough.
func best(feats []Feature, id ID) (Feature, bool) {
	list := pick(feats, id)
	for _, f := range list {
		if f.State == Supported {
			return f, true
		}
	}
	if len(list) == 0 {
		f := Feature{ID: id, Reason: "was not asked for"}
		if id == NativeXDP {
			f.Reason, f.Remedy = "no underlay was found", shell.Command("overlane doctor  # again, once a container of an overlay network runs on this node")
		}
		return f, false
	}
	return list[0], false
}

func missing(f Feature) string {
	s := string(f.ID)
	if f.Device != "" {
		s += " of " + f.Device
	}
	if f.State == Unknown && f.Device != "" {
		s += " is unknown"
	}
	return s + ": " + f.Reason
}
