// SPDX-License-Identifier: Apache-2.0

package plan

import "slices"

// ExpressProgram hands frames from a NIC straight to pods.
const ExpressProgram = "ol_underlay_xdp"

// Landing is a pod's end of a veth as the express path finds it.
type Landing struct {
	Target
	// GRO is the value of rx-gro: it has the veth polled, without which XDP frames cannot land.
	GRO string
	// List is the value of rx-gro-list, "" if the kernel does not know it.
	List string
	// Path tells that there is a path to the pod, or may be one as soon as frames can land; if
	// not, Unfit says why.
	Path  bool
	Unfit string
}

// HandingNIC is a NIC that paths begin at.
type HandingNIC struct {
	Target
	// Cost is what it costs to put a program there, "" if nothing.
	Cost string
	// Pods are the ends that its paths lead to.
	Pods []Target
}

// Costs adds to a reason what an XDP program costs.
func Costs(reason, cost string) string {
	if cost == "" {
		return reason
	}
	return reason + "; " + cost
}

// ExpressInput is everything that the express path's plan depends on.
type ExpressInput struct {
	NICs []HandingNIC // that paths begin at, and that have no program of priority's
	Pods []Landing
	// Join has what lands join datagrams of one flow that come in a row, as aggregation does on
	// the full path.
	Join bool
	// Owned holds the settings that overlane has changed and not undone.
	Owned map[Setting]Owned
}

// Lands returns the setting that lets frames land at a pod's end.
func Lands(t Target) Setting { return Setting{Target: t, Kind: EthtoolFeature, Attr: GRO} }

// Joins returns the setting that joins datagrams that land at a pod's end.
func Joins(t Target) Setting { return Setting{Target: t, Kind: EthtoolFeature, Attr: GROList} }

// Express plans the paths from NICs straight to pods.
func Express(in ExpressInput) Plan {
	p := Plan{Steps: []Step{}, Attach: []Attachment{}, Skipped: []Skip{}}
	led := map[Target]bool{}
	for _, pod := range in.Pods {
		s := Lands(pod.Target)
		if _, touched := in.Owned[s]; pod.Path && touched && pod.GRO != "on" {
			pod.Path, pod.Unfit = false, "left alone: another program has switched GRO off again"
		}
		if !pod.Path {
			p.Skipped = append(p.Skipped, Skip{What: pod.Target.String(), Reason: "no express path: " + pod.Unfit, Target: pod.Target})
			continue
		}
		led[pod.Target] = true
		if pod.GRO != "on" {
			p.Steps = append(p.Steps, Step{Setting: s, Was: pod.GRO, First: Requested(pod.GRO), Want: "on",
				Reason: "without GRO a veth takes no frames straight from a NIC"})
		}
		ours, listed := in.Owned[Joins(pod.Target)]
		if !in.Join && listed && pod.List == "on" {
			p.Steps = append(p.Steps, Step{Setting: Joins(pod.Target), Was: pod.List, First: ours.First, Want: ours.First,
				Reason: "datagrams are no longer to be joined"})
		}
		if in.Join && pod.List == "off" && !listed {
			p.Steps = append(p.Steps, Step{Setting: Joins(pod.Target), Was: pod.List, First: pod.List, Want: "on",
				Reason: "datagrams of one flow that come in a row pass the pod's stack as one packet"})
		}
	}
	for _, nic := range in.NICs {
		if slices.ContainsFunc(nic.Pods, func(t Target) bool { return led[t] }) {
			p.Attach = append(p.Attach, Attachment{Target: nic.Target, Program: ExpressProgram, Hook: "xdp (native)",
				Reason: Costs("hands frames straight to pods where nothing on the way could tell", nic.Cost)})
		}
	}
	p.Steps = of(ByExpress, p.Steps)
	return p
}
