// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shell"
	"github.com/overlane/overlane/internal/xdp"
)

// planInput puts what was seen on the node and the placement that is wanted into
// the planner's words. Both the daemon and `overlane plan` plan by it.
// want is what an XDP program is for, where the layout has one. past is what packets would skip behind a resequencer,
// by the host ends of pods.
func planInput(s node.Reader, snap node.Snapshot, layout governor.Layout, owned map[plan.Setting]plan.Owned, places *xdp.Places, want xdp.Want, past map[node.DevKey]string) plan.Input {
	in := plan.Input{TunnelCores: layout.Tunnel, PodCores: layout.Pod, MostTunnels: datapath.MaxTunnels, Owned: owned}
	if layout.Split {
		in.PodCores = nil // behind resequencers only, on devices of our own
	}
	// Where the tunnel stage does not hop, the program on an underlay is there for the pod stage's.
	first, tells := plan.Tunnel, "chooses the core of the tunnel stage for each flow"
	if len(layout.Tunnel) == 0 {
		first, tells = plan.Pod, "tells the programs at the pods which flow a packet is of"
	}
	attach := func(d node.Dev, program, hook string, steers plan.Stage, reason string) {
		in.Attach = append(in.Attach, plan.Attachment{Target: plan.Target(d), Program: program, Hook: hook, Steers: steers, Reason: reason})
	}
	skip := func(d node.Dev, reason string) {
		in.Skipped = append(in.Skipped, plan.Skip{What: plan.Target(d).String(), Reason: reason, Target: plan.Target(d)})
	}
	dataplane := foreign.Dataplanes(s, snap)
	touched := map[plan.Target]bool{}
	for set := range owned {
		touched[set.Target] = true
	}
	headers, behind := map[string]bool{}, map[node.DevKey]bool{} // behind as many others as the programs know
	for _, t := range snap.Tunnels {
		head := header(t)
		if full := len(headers) == datapath.MaxTunnels && !headers[head]; full && !touched[plan.Target(t.Dev)] {
			// There may be hundreds: neither these nor the pods behind them are read.
			behind[t.Key()] = true
			in.Tunnels = append(in.Tunnels, plan.Device{Target: plan.Target(t.Dev), Header: head, Unfit: plan.TooMany(datapath.MaxTunnels)})
			continue
		}
		dev := planDevice(s, t.Dev, dataplane[t.Key()])
		dev.Header = head
		if dev.Unfit == "" && plan.Foreign(dev, owned) == "" {
			headers[head] = true
		}
		in.Tunnels = append(in.Tunnels, dev)
	}
	// The pods' and the tunnels' come first: what the ones on the underlays do to a packet is undone there.
	for _, pod := range snap.Pods {
		dev := plan.Device{Target: plan.Target(pod.Peer)}
		leads := func(t node.Dev) bool { return !behind[t.Key()] }
		if len(pod.Tunnels) == 0 || slices.ContainsFunc(pod.Tunnels, leads) || touched[dev.Target] {
			unfit := cmp.Or(dataplane[pod.Peer.Key()], podUnfit(pod))
			if unfit == "" && !layout.Split { // resequencers are in front of the pod's end
				unfit = podPolled(s, pod)
			}
			dev = planDevice(s, pod.Peer, unfit)
		}
		for _, t := range pod.Tunnels {
			dev.Behind = append(dev.Behind, plan.Target(t))
		}
		in.Pods = append(in.Pods, dev)
		why := past[pod.Host.Key()]
		if layout.Merge && why != "" {
			in.Skipped = append(in.Skipped, plan.Skip{
				What:   fmt.Sprintf("%s at tcx egress of %s", podMerge, plan.Target(pod.Host)),
				Reason: "flows whose order is restored stay whole here: " + why, Target: plan.Target(pod.Host),
			})
		}
		restore := plan.Attachment{Target: plan.Target(pod.Host), Program: podRestore, Hook: "tcx egress", Steers: first, Serves: dev.Target, Reason: "takes back the hash that chose the core"}
		switch {
		case !layout.Split:
			attach(pod.Host, podOut, "tcx egress", plan.Pod, "chooses the core of the pod stage for each flow")
			in.Attach[len(in.Attach)-1].Instead = &restore
		case layout.Merge && why == "":
			attach(pod.Host, podMerge, "tcx egress", plan.NIC, "sends the packets of split flows where they are put in order")
		case hashed(layout):
			in.Attach = append(in.Attach, restore)
		default:
			continue
		}
		in.Attach[len(in.Attach)-1].Serves = dev.Target
	}
	for _, dev := range in.Tunnels {
		if hashed(layout) {
			attach(node.Dev(dev.Target), tunnelClear, "tcx ingress", first, "takes back the hash that chose the core")
			in.Attach[len(in.Attach)-1].Serves = dev.Target
		}
	}
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
				in.Skipped = append(in.Skipped, skipXDP(u, why))
			} else {
				attach(u.Dev, plan.ExpressProgram, "xdp (native)", plan.NIC, plan.Costs(what, places.Cost(u)))
			}
		}
		switch {
		case !layout.Split:
			attach(u.Dev, underlayIn, "tcx ingress", first, tells)
		case len(layout.NIC) == 0:
			attach(u.Dev, underlaySplit, "tcx ingress", plan.Tunnel, "cuts the flows that are too much for one core into micro-flows")
		case hashed(layout):
			attach(u.Dev, underlayNumber, "tcx ingress", plan.Tunnel, "sends each branch's packets on to its second core")
		case layout.Merge:
			attach(u.Dev, underlayNumber, "tcx ingress", plan.NIC, "takes over the numbers of split UDP flows")
		}
	}
	for _, pod := range snap.Stacked {
		skip(pod.Dev, pod.Alone())
	}
	for _, sk := range snap.Skipped {
		skip(sk.Dev, sk.Reason)
	}
	return in
}

// podMask are the cores of the pods' masks: also those that are no lanes, so that a packet that stays on one can have a
// hash, by which programs in the pod may choose its socket.
func podMask(layout governor.Layout, cores []int) []int {
	if len(layout.Pod) == 0 || layout.Split {
		return nil
	}
	mask := slices.Compact(slices.Sorted(slices.Values(slices.Concat(layout.Pod, cores))))
	if len(mask) > datapath.MaxMask {
		return nil
	}
	return mask
}

// skipXDP is a NIC that gets no program.
func skipXDP(u node.Underlay, why string) plan.Skip {
	return plan.Skip{What: plan.ExpressProgram + " at xdp (native) of " + plan.Target(u.Dev).String(), Reason: why, Target: plan.Target(u.Dev)}
}

// LeftAlone are the devices that the pipeline would not touch, wherever its stages go on, and why. Doctor says
// by it what plan and run say.
func LeftAlone(s node.Reader, snap node.Snapshot, owned map[plan.Setting]plan.Owned) []plan.Skip {
	snap.Skipped = nil
	skipped := plan.Pipeline(planInput(s, snap, governor.Layout{}, owned, nil, xdp.Want{}, nil)).Skipped
	return slices.DeleteFunc(skipped, func(sk plan.Skip) bool { return !sk.Whole() })
}

// header is the same for tunnels that the programs know as one.
func header(t node.Tunnel) string { return fmt.Sprint(t.Port, t.VNI, t.AnyVNI, t.Outer) }

// podUnfit tells why a pod is left alone, if it is.
func podUnfit(pod node.Pod) string {
	if pod.HostQdisc != "" && pod.HostQdisc != "noqueue" {
		return fmt.Sprintf("qdisc %s on its host end may hold packets back: order could not be guarded", pod.HostQdisc)
	}
	return ""
}

// podPolled tells why a pod is left alone whose end NAPI polls: packets wait in its ring then before RPS moves them, and
// are in no lane yet when the poll ends that brought them (veth_skb_is_eligible_for_gro). Native XDP there turns GRO on.
// A device whose features cannot be read is gone.
func podPolled(s node.Reader, pod node.Pod) string {
	if host, err := s.Features(pod.Host); err != nil || ethtool.TSO(host) {
		return ""
	}
	if peer, err := s.Features(pod.Peer); err != nil || !peer[ethtool.GRO].Active {
		return ""
	}
	return shell.See("TCP segmentation is off on its host end, so that its GRO has a queue: order could not be guarded (native XDP in the pod keeps it off)",
		shell.Command("ethtool -K %s tso on", pod.Host.Name))
}

func planDevice(s node.Reader, d node.Dev, unfit string) plan.Device {
	dev := plan.Device{Target: plan.Target(d), Unfit: unfit}
	if unfit != "" {
		return dev
	}
	set, err := s.Settings(d)
	switch {
	case errors.Is(err, node.ErrGone): // no queues, no steps
	case err != nil:
		dev.Unfit = fmt.Sprintf("left alone: %v", err)
	case set.Owner != 0:
		// Said also where the caller has the capability, as run has not.
		dev.Unfit = fmt.Sprintf("left alone: a user namespace owns its network namespace, and user %d its receive masks, which root may not write without CAP_DAC_OVERRIDE", set.Owner)
	case set.Unwritable != "":
		dev.Unfit = "left alone: " + set.Unwritable
	default:
		for i := range set.RPSCPUs {
			dev.RxQueues = append(dev.RxQueues, plan.RxQueue{Index: i, RPSCPUs: set.RPSCPUs[i], RPSFlowCnt: int(set.RPSFlowCnt[i])})
		}
	}
	return dev
}

// leaveToExpress leaves pods alone whose packets come straight from the NIC.
func leaveToExpress(in *plan.Input, snap node.Snapshot, claims func(node.Pod) bool) {
	for i, pod := range snap.Pods {
		if in.Pods[i].Unfit == "" && claims(pod) {
			in.Pods[i].Unfit = "its packets come straight from the NIC (express)"
		}
	}
}
