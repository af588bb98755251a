// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
)

// Namespaces opens namespaces; *node.Scanner does.
type Namespaces interface {
	Namespace(cookie uint64) (*netns.Handle, error)
	Path(cookie uint64) (string, error)
	Settings(node.Dev) (node.Settings, error)
}

// Diagnose looks for classic causes of a slow overlay in what a scan found, the
// worst first; it takes a second, in which it watches counters. here is the namespace in which its commands are
// run, own reports which BPF programs are ours. It changes nothing. Devices that cannot be looked at are joined
// into the error, beside the findings about the others.
func Diagnose(ctx context.Context, namespaces Namespaces, snap node.Snapshot, here uint64, own func(progID uint32) bool) ([]Finding, error) {
	byNamespace := map[uint64][]node.Dev{}
	var cookies []uint64
	want := func(d node.Dev) {
		if _, ok := byNamespace[d.NetnsCookie]; !ok {
			cookies = append(cookies, d.NetnsCookie)
		}
		byNamespace[d.NetnsCookie] = append(byNamespace[d.NetnsCookie], d)
	}
	for _, u := range snap.Underlays {
		want(u.Dev)
	}
	for _, t := range snap.Tunnels {
		want(t.Dev)
	}
	ends := map[uint64][]int{} // of pods, on the host's side
	for _, p := range snap.Pods {
		if ends[p.Host.NetnsCookie] == nil && byNamespace[p.Host.NetnsCookie] == nil {
			cookies = append(cookies, p.Host.NetnsCookie)
		}
		ends[p.Host.NetnsCookie] = append(ends[p.Host.NetnsCookie], p.Host.Ifindex)
	}
	since, sums := time.Now(), badChecksums(namespaces, snap)
	devs := map[node.DevKey]dev{}
	var failed []error
	for _, cookie := range cookies {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := gather(namespaces, cookie, byNamespace[cookie], ends[cookie], own, devs); err != nil {
			failed = append(failed, err)
		}
	}
	for _, t := range snap.Tunnels {
		if d, ok := devs[t.Key()]; ok {
			set, err := namespaces.Settings(t.Dev)
			if err != nil {
				failed = append(failed, err)
			}
			d.threaded = set.Threaded
			devs[t.Key()] = d
		}
	}
	for _, u := range snap.Underlays {
		if d, ok := devs[u.Key()]; ok && u.ForeignXDP {
			d.xdp = foreign.Say(u.XDPProgID)
			devs[u.Key()] = d
		}
	}
	for _, p := range snap.Pods {
		devs[p.Peer.Key()] = dev{Dev: p.Peer}
		host := devs[p.Host.Key()]
		host.Dev = p.Host
		devs[p.Host.Key()] = host
	}
	if err := grown(ctx, namespaces, snap, sums, since, devs); err != nil {
		return nil, err
	}
	for k, d := range devs {
		if k.NetnsCookie != here {
			if path, err := namespaces.Path(k.NetnsCookie); err == nil {
				d.at = path
				devs[k] = d
			}
		}
	}
	return diagnose(snap, devs), errors.Join(failed...)
}

// gather reads the devices of one namespace; of the pods' ends in it only which programs are at their hooks.
func gather(namespaces Namespaces, cookie uint64, list []node.Dev, ends []int, own func(uint32) bool, into map[node.DevKey]dev) error {
	h, err := namespaces.Namespace(cookie)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.Do(func() error {
		var failed []error
		all := slices.Clone(ends)
		for _, nd := range list {
			all = append(all, nd.Ifindex)
		}
		var hooked foreign.Scanner
		hooks, err := hooked.Scan(all)
		if err != nil {
			failed = append(failed, err)
		}
		for _, end := range ends {
			into[node.DevKey{NetnsCookie: cookie, Ifindex: end}] = dev{hooks: others(hooks[end], own)}
		}
		for _, nd := range list {
			offloads, err := ethtool.Features(nd.Name)
			if err != nil {
				failed = append(failed, fmt.Errorf("read offload flags of %s: %w", nd, err))
				continue
			}
			d := dev{Dev: nd, offloads: offloads, hooks: others(hooks[nd.Ifindex], own)}
			if ch, err := ethtool.ReadChannels(nd.Name); err == nil {
				// Not all drivers have channels.
				d.rx = queues{"combined", ch.Combined, ch.MaxCombined}
				if ch.MaxCombined == 0 {
					d.rx = queues{"rx", ch.Rx, ch.MaxRx}
				}
			}
			into[nd.Key()] = d
		}
		return errors.Join(failed...)
	})
}

// others leaves out what is ours.
func others(h foreign.Hooks, own func(uint32) bool) foreign.Hooks {
	h.Programs = slices.DeleteFunc(h.Programs, func(p foreign.Program) bool { return own(p.ID) })
	return h
}
