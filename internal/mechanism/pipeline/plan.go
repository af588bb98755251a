// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/xdp"
)

// planInput puts what was seen on the node and the placement that is wanted into
// the planner's words. Both the daemon and `overlane plan` plan by it.
// want is what an XDP program is for, where the layout has one.
func planInput(s node.Reader, snap node.Snapshot, layout governor.Layout, owned map[plan.Setting]plan.Owned, places *xdp.Places, want xdp.Want) plan.Input {
	in := plan.Input{TunnelCores: layout.Tunnel, PodCores: layout.Pod, Owned: owned}
	if layout.Split {
		in.PodCores = nil // behind resequencers only, on devices of our own
	}
	hashes := layout.Split && len(layout.Tunnel) > 0
	attach := func(d node.Dev, program, hook string, steers plan.Stage, reason string) {
		in.Attach = append(in.Attach, plan.Attachment{Target: plan.Target(d), Program: program, Hook: hook, Steers: steers, Reason: reason})
	}
	skip := func(d node.Dev, reason string) {
		in.Skipped = append(in.Skipped, plan.Skip{What: plan.Target(d).String(), Reason: reason, Target: plan.Target(d)})
	}
	dataplane := foreign.Dataplanes(s, snap)
	for _, u := range snap.Underlays {
		if reason := dataplane[u.Key()]; reason != "" {
			skip(u.Dev, reason)
			continue
		}
		if len(layout.NIC) > 0 {
			what := "sends packets to the lanes of the nic stage"
			if layout.Split {
				what = "cuts the flows that are too much for one core into micro-flows"
			}
			if why := places.Why(u, want); why != "" {
				in.Skipped = append(in.Skipped, plan.Skip{What: "ol_underlay_xdp at xdp (native) of " + plan.Target(u.Dev).String(), Reason: why, Target: plan.Target(u.Dev)})
			} else {
				attach(u.Dev, "ol_underlay_xdp", "xdp (native)", plan.NIC, plan.Costs(what, places.Cost(u)))
			}
		}
		if hashes && len(layout.NIC) == 0 {
			attach(u.Dev, "ol_underlay_split", "tcx ingress", plan.Tunnel, "cuts the flows that are too much for one core into micro-flows")
		} else if hashes {
			attach(u.Dev, "ol_underlay_number", "tcx ingress", plan.Tunnel, "sends each branch's packets on to its second core")
		} else if layout.Merge {
			attach(u.Dev, "ol_underlay_number", "tcx ingress", plan.NIC, "takes over the numbers of split UDP flows")
		}
		if layout.Split {
			continue
		}
		attach(u.Dev, "ol_underlay_in", "tcx ingress", plan.Tunnel, "chooses the core of the tunnel stage for each flow")
	}
	for _, t := range snap.Tunnels {
		if reason := dataplane[t.Key()]; reason != "" {
			skip(t.Dev, reason)
		} else if dev, err := planDevice(s, t.Dev); err != nil {
			skip(t.Dev, err.Error())
		} else {
			in.Tunnels = append(in.Tunnels, dev)
		}
	}
	for _, pod := range snap.Pods {
		if reason := cmp.Or(dataplane[pod.Peer.Key()], podUnfit(pod)); reason != "" {
			skip(pod.Peer, reason)
			continue
		}
		dev, err := planDevice(s, pod.Peer)
		if err != nil {
			skip(pod.Peer, err.Error())
			continue
		}
		in.Pods = append(in.Pods, dev)
		restore := plan.Attachment{Target: plan.Target(pod.Host), Program: "ol_pod_restore", Hook: "tcx egress", Steers: plan.Tunnel, Reason: "takes back the hash that chose the core"}
		if hashes && !layout.Merge {
			in.Attach = append(in.Attach, restore)
		}
		if layout.Merge {
			attach(pod.Host, "ol_pod_merge", "tcx egress", plan.NIC, "sends the packets of split flows where they are put in order")
		}
		if layout.Split {
			continue
		}
		attach(pod.Host, "ol_pod_out", "tcx egress", plan.Pod, "chooses the core of the pod stage for each flow")
		out := &in.Attach[len(in.Attach)-1]
		out.Serves, out.Instead = plan.Target(pod.Peer), &restore
	}
	for _, sk := range snap.Skipped {
		skip(sk.Dev, sk.Reason)
	}
	return in
}

// LeftAlone are the devices that the pipeline would not touch, wherever its stages go on, and why. Doctor says
// by it what plan and run say.
func LeftAlone(s node.Reader, snap node.Snapshot, owned map[plan.Setting]plan.Owned) []plan.Skip {
	snap.Skipped = nil
	skipped := plan.Pipeline(planInput(s, snap, governor.Layout{}, owned, nil, xdp.Want{})).Skipped
	return slices.DeleteFunc(skipped, func(sk plan.Skip) bool { return !sk.Whole() })
}

// podUnfit tells why a pod is left alone, if it is.
func podUnfit(pod node.Pod) string {
	if pod.HostQdisc != "" && pod.HostQdisc != "noqueue" {
		return fmt.Sprintf("qdisc %s on its host end may hold packets back: order could not be guarded", pod.HostQdisc)
	}
	return ""
}

func planDevice(s node.Reader, d node.Dev) (plan.Device, error) {
	dev := plan.Device{Target: plan.Target(d)}
	set, err := s.Settings(d)
	if errors.Is(err, node.ErrGone) {
		return dev, nil // no queues, no steps
	}
	if err != nil {
		return dev, fmt.Errorf("left alone: %w", err)
	}
	if set.Owner != 0 {
		// Said also where the caller has the capability, as run has not.
		return dev, fmt.Errorf("left alone: a user namespace owns its network namespace, and user %d its receive masks, which root may not write without CAP_DAC_OVERRIDE", set.Owner)
	}
	if set.Unwritable != "" {
		return dev, fmt.Errorf("left alone: %s", set.Unwritable)
	}
	for i := range set.RPSCPUs {
		dev.RxQueues = append(dev.RxQueues, plan.RxQueue{Index: i, RPSCPUs: set.RPSCPUs[i], RPSFlowCnt: int(set.RPSFlowCnt[i])})
	}
	return dev, nil
}
