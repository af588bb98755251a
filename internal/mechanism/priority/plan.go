// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"fmt"
	"slices"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/napi"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/xdp"
)

// planInput puts what was seen on the node into the planner's words. Both the
// daemon and `overlane plan` plan by it. attached tells on which underlays priority's
// program is already.
func planInput(s *node.Scanner, snap node.Snapshot, cores []int, owned map[plan.Setting]plan.Owned, attached func(node.Underlay) bool, places *xdp.Places, want xdp.Want) plan.PriorityInput {
	in := plan.PriorityInput{Cores: cores, Owned: owned, NoSlices: !apply.KnowsSlices()}
	for _, u := range snap.Underlays {
		nic := plan.Underlay{Target: plan.Target(u.Dev), Queues: u.RxQueues, Attached: attached(u), Master: u.Master(), Cost: places.Cost(u)}
		if !nic.Attached {
			nic.Unfit = places.Why(u, want)
		}
		if nic.Unfit == "" && !nic.Master {
			nic.Unread = readThreads(s, u, &nic)
		}
		in.NICs = append(in.NICs, nic)
	}
	return in
}

// readThreads finds out how a NIC is polled, or returns why that cannot be told.
func readThreads(s *node.Scanner, u node.Underlay, nic *plan.Underlay) (unread string) {
	set, err := s.Settings(u.Dev)
	if err == nil {
		nic.Threaded, nic.Queues = set.Threaded, len(set.RPSCPUs)
	}
	if err == nil && !set.Threaded && u.Driver == "veth" {
		err = mechanism.Offloads(s, u.Dev, map[string]*string{plan.GRO: &nic.GRO})
	}
	if err == nil && set.Threaded {
		nic.Threads, err = napiThreads(s, u.Dev, nic.Queues)
	}
	if err != nil {
		return fmt.Sprintf("left alone: %v", err)
	}
	return ""
}

// napiThreads reads which threads poll a device, and how they are scheduled.
func napiThreads(s *node.Scanner, dev node.Dev, queues int) (threads []plan.NAPIThread, err error) {
	ns, err := s.Namespace(dev.NetnsCookie)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	tids, err := netns.Read(ns, func() ([]int, error) { return napi.Threads(dev.Ifindex, queues) })
	if err != nil {
		return nil, err
	}
	for _, tid := range tids {
		var th plan.NAPIThread
		if th.ID, err = apply.IdentifyThread(tid); err != nil {
			return nil, err
		}
		if th.Sched, err = apply.SchedOf(th.ID); err != nil {
			return nil, err
		}
		threads = append(threads, th)
	}
	return threads, nil
}

// syncTunnels are those that mode sync puts its program on: no more than the classes are told of.
func syncTunnels(snap node.Snapshot) (list []plan.Target) {
	for _, t := range snap.Tunnels {
		if len(list) == datapath.MaxTunnels {
			break
		}
		leads := func(p node.Pod) bool { return slices.Contains(p.Tunnels, t.Dev) }
		if slices.ContainsFunc(snap.Pods, leads) {
			list = append(list, plan.Target(t.Dev))
		}
	}
	return list
}
