// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// Stage is a hop of the receive path after which work may go on on another
// core.
type Stage string

const (
	// NIC is the first stage, at the underlay.
	NIC Stage = "nic"
	// Tunnel is the stage of the VXLAN or Geneve device.
	Tunnel Stage = "tunnel"
	// Pod is the stage of the container's end of its veth.
	Pod Stage = "pod"
)

// RxQueue is a receive queue as it was found.
type RxQueue struct {
	Index int `json:"index"`
	// RPSCPUs is the content of rps_cpus.
	RPSCPUs string `json:"rps_cpus"`
	// RPSFlowCnt is the content of rps_flow_cnt: not 0 means RFS decides.
	RPSFlowCnt int `json:"rps_flow_cnt"`
}

// Device is a network device as it was found.
type Device struct {
	Target
	RxQueues []RxQueue `json:"rx_queues"`
	// Unfit says why it is left as it is, "" if it is not.
	Unfit string `json:"-"`
	// Behind are the tunnels that lead to a pod; none: that is not known.
	Behind []Target `json:"-"`
	// Header is what tells a tunnel's packets from others': those of the same count as one.
	Header string `json:"-"`
}

// Owned is what overlane itself did to a setting earlier.
type Owned struct {
	// First is the value before overlane touched the setting, Wrote the
	// one it wrote last.
	First, Wrote string
}

// Input is everything that the pipeline's plan depends on.
type Input struct {
	Tunnels []Device
	// Pods are the devices inside of the pods, not their host ends.
	Pods []Device
	// MostTunnels is how many the programs know at a time; 0: any number.
	MostTunnels int
	// TunnelCores and PodCores are the cores on which a stage goes on; none
	// means that the stage stays where the one before it ran.
	TunnelCores, PodCores []int
	// PodMask are the cores of the pods' masks where these are more: those on which flows may stay.
	PodMask []int
	// Merge is, for each namespace in which split flows are put in order, the device for
	// that; none where there is nothing to do.
	Merge []Step
	// Owned holds the settings that overlane has changed and not undone.
	Owned map[Setting]Owned
	// Attach are the programs that are wanted where steering is possible.
	Attach []Attachment
	// Skipped is what was ruled out before, and is only passed on.
	Skipped []Skip
}

// Pipeline plans the receive masks of the tunnel and pod stages. A device on
// which another program has set a mask or flow steering is left alone as a
// whole: the masks of one device only make sense together.
func Pipeline(in Input) Plan {
	p := Plan{Steps: []Step{}, Attach: []Attachment{}, Skipped: append([]Skip{}, in.Skipped...)}
	for _, s := range in.Merge {
		if ours, touched := in.Owned[s.Setting]; touched {
			s.First, s.Was = ours.First, ours.Wrote
		}
		if s.Was != s.Want {
			p.Steps = append(p.Steps, s)
		}
	}
	steered, alone, apart := make(map[Stage]bool), make(map[Target]bool), make(map[Target]bool)
	headers := make(map[string]bool) // of tunnels that are not left alone
	for _, s := range in.Skipped {
		alone[s.Target] = alone[s.Target] || s.Whole()
	}
	for _, stage := range []struct {
		name    Stage
		devices []Device
		cores   []int
		mask    []int
	}{{Tunnel, in.Tunnels, in.TunnelCores, nil}, {Pod, in.Pods, in.PodCores, in.PodMask}} {
		for _, dev := range stage.devices {
			if alone[dev.Target] {
				continue // ruled out before: no program of ours sees its packets
			}
			cores, reason := stage.cores, cmp.Or(dev.Unfit, Foreign(dev, in.Owned))
			theirs := reason != ""
			if len(dev.Behind) > 0 && !slices.ContainsFunc(dev.Behind, func(t Target) bool { return !alone[t] }) {
				// A mask would move packets whose order no program guards.
				apart[dev.Target], cores, reason = true, nil, cmp.Or(reason, leftBehind)
			}
			if stage.name == Tunnel && reason == "" {
				if in.MostTunnels > 0 && len(headers) == in.MostTunnels && !headers[dev.Header] {
					cores, reason = nil, TooMany(in.MostTunnels)
				} else {
					headers[dev.Header] = true
				}
			}
			if reason != "" {
				p.Skipped = append(p.Skipped, Skip{What: dev.Target.String(), Reason: reason, Target: dev.Target})
				alone[dev.Target] = true
			}
			if theirs {
				continue
			}
			if len(cores) > 0 && len(dev.RxQueues) > 0 {
				steered[stage.name] = true
			}
			p.Steps = append(p.Steps, masks(stage.name, dev, cores, stage.mask, in.Owned)...)
		}
	}
	for _, a := range in.Attach {
		if apart[a.Serves] || alone[a.Target] {
			continue
		}
		if a.Instead != nil && alone[a.Serves] {
			a = *a.Instead
		}
		if a.Steers != "" && a.Steers != NIC && !steered[a.Steers] {
			p.Skipped = append(p.Skipped, Skip{
				What:   fmt.Sprintf("%s at %s of %s", a.Program, a.Hook, a.Target),
				Reason: fmt.Sprintf("not attached: no device of the %s stage is steered", a.Steers),
				Target: a.Target,
			})
			continue
		}
		p.Attach = append(p.Attach, a)
	}
	p.Steps = of(ByPipeline, p.Steps)
	return p
}

// leftBehind is why a pod is left alone that overlane's own settings do not keep from being steered.
const leftBehind = "left alone: so is every tunnel that leads to it"

// TooMany is why a tunnel is left alone that comes behind so many others.
func TooMany(most int) string {
	return fmt.Sprintf("left alone: at most %d tunnels are steered, and so many come before it", most)
}

// RPSMask returns the setting that stands for the receive mask of a queue.
func RPSMask(t Target, queue int) Setting {
	return Setting{Target: t, Kind: SysfsAttr, Attr: "queues/rx-" + strconv.Itoa(queue) + "/rps_cpus"}
}

// Foreign says which setting of a device is another program's, if one is.
func Foreign(dev Device, owned map[Setting]Owned) string {
	for _, q := range dev.RxQueues {
		mask := RPSMask(dev.Target, q.Index)
		ours, touched := owned[mask]
		switch {
		case q.RPSFlowCnt != 0:
			return fmt.Sprintf("left alone: RFS table of %d flows set by another program on rx-%d", q.RPSFlowCnt, q.Index)
		case touched && !mask.Same(q.RPSCPUs, ours.Wrote):
			return fmt.Sprintf("left alone: RPS mask of rx-%d changed by another program from %s to %s",
				q.Index, ours.Wrote, mask.Canonical(q.RPSCPUs))
		case !touched && !mask.Same(q.RPSCPUs, "0"):
			return fmt.Sprintf("left alone: RPS mask set by another program (rx-%d: %s)", q.Index, mask.Canonical(q.RPSCPUs))
		}
	}
	return ""
}

func masks(stage Stage, dev Device, cores, mask []int, owned map[Setting]Owned) []Step {
	var steps []Step
	if len(mask) == 0 {
		mask = cores
	}
	goesOn := fmt.Sprintf("%s stage goes on on %s", stage, coresText(cores))
	if len(mask) > len(cores) {
		goesOn += ", or stays where it is"
	}
	for _, q := range dev.RxQueues {
		s := RPSMask(dev.Target, q.Index)
		step := Step{
			Setting: s,
			Was:     s.Canonical(q.RPSCPUs),
			First:   s.Canonical(q.RPSCPUs),
			Want:    Mask(mask),
			Reason:  goesOn,
		}
		ours, touched := owned[s]
		if touched {
			step.First = s.Canonical(ours.First)
		}
		if len(cores) == 0 {
			if !touched {
				continue
			}
			step.Want = step.First
			step.Reason = fmt.Sprintf("%s stage is not steered any more", stage)
		}
		if !s.Same(step.Was, step.Want) {
			steps = append(steps, step)
		}
	}
	return steps
}
