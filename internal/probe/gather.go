// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
)

// Spaces opens namespaces; *node.Scanner does.
type Spaces interface {
	Namespace(cookie uint64) (*netns.Handle, error)
	Path(cookie uint64) (string, error)
}

// Diagnose looks for classic causes of a slow overlay in what a scan found, the
// worst first. own reports which BPF programs are ours; nil: none. It changes
// nothing. Devices that cannot be looked at are joined into the error, beside
// the findings about the others.
func Diagnose(ctx context.Context, spaces Spaces, snap node.Snapshot, own func(progID uint32) bool) ([]Finding, error) {
	if own == nil {
		own = func(uint32) bool { return false }
	}
	bySpace := map[uint64][]node.Dev{}
	var cookies []uint64
	want := func(d node.Dev) {
		if _, ok := bySpace[d.NetnsCookie]; !ok {
			cookies = append(cookies, d.NetnsCookie)
		}
		bySpace[d.NetnsCookie] = append(bySpace[d.NetnsCookie], d)
	}
	for _, u := range snap.Underlays {
		want(u.Dev)
	}
	for _, t := range snap.Tunnels {
		want(t.Dev)
	}
	here, err := hereCookie()
	if err != nil {
		return nil, err
	}
	devs := map[node.DevKey]dev{}
	var failed []error
	for _, cookie := range cookies {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := gather(spaces, cookie, bySpace[cookie], own, devs); err != nil {
			failed = append(failed, err)
		}
	}
	for _, p := range snap.Pods {
		devs[p.Peer.Key()] = dev{Dev: p.Peer}
	}
	for k, d := range devs {
		if k.NetnsCookie != here {
			if path, err := spaces.Path(k.NetnsCookie); err == nil {
				d.at = "nsenter --net=" + path + " "
				devs[k] = d
			}
		}
	}
	return diagnose(snap, devs), errors.Join(failed...)
}

func hereCookie() (uint64, error) {
	h, err := netns.Current()
	if err != nil {
		return 0, err
	}
	defer h.Close()
	return h.Cookie()
}

// gather reads the devices of one namespace.
func gather(spaces Spaces, cookie uint64, list []node.Dev, own func(uint32) bool, into map[node.DevKey]dev) error {
	h, err := spaces.Namespace(cookie)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.Do(func() error {
		var failed []error
		for _, nd := range list {
			d := dev{Dev: nd, offloads: map[string]offload{}}
			flags, err := ethtool.Features(nd.Name)
			if err != nil {
				failed = append(failed, fmt.Errorf("read offload flags of %s: %w", nd, err))
				continue
			}
			for name, f := range flags {
				d.offloads[name] = offload{f.Active, !f.Fixed}
			}
			if ch, err := ethtool.ReadChannels(nd.Name); err == nil {
				// Not all drivers have channels.
				d.rx = queues{"combined", ch.Combined, ch.MaxCombined}
				if ch.MaxCombined == 0 {
					d.rx = queues{"rx", ch.Rx, ch.MaxRx}
				}
			}
			if d.tcx, err = foreignTCX(nd.Ifindex, own); err != nil {
				failed = append(failed, fmt.Errorf("list tcx programs of %s: %w", nd, err))
			}
			if d.filters, err = filters(nd); err != nil {
				failed = append(failed, fmt.Errorf("list tc filters of %s: %w", nd, err))
			}
			into[nd.Key()] = d
		}
		return errors.Join(failed...)
	})
}

func foreignTCX(ifindex int, own func(uint32) bool) ([]uint32, error) {
	var list []uint32
	for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		res, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: at})
		if errors.Is(err, ebpf.ErrNotSupported) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for _, p := range res.Programs {
			if !own(uint32(p.ID)) {
				list = append(list, uint32(p.ID))
			}
		}
	}
	return list, nil
}

// filters lists the kinds of filters behind a clsact or ingress qdisc.
func filters(d node.Dev) ([]string, error) {
	l, err := netlink.LinkByIndex(d.Ifindex)
	if err != nil {
		return nil, err
	}
	qdiscs, err := netlink.QdiscList(l)
	if err != nil {
		return nil, err
	}
	clsact := slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "clsact" || q.Type() == "ingress" })
	if !clsact {
		return nil, nil
	}
	var kinds []string
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		list, err := netlink.FilterList(l, parent)
		if err != nil {
			return nil, err
		}
		for _, f := range list {
			if !slices.Contains(kinds, f.Type()) {
				kinds = append(kinds, f.Type())
			}
		}
	}
	return kinds, nil
}
