// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxRetries bounds the extra scans for a container that may still be about to
// get its routes, of which nothing outside it tells.
const maxRetries = 5

// pods reports the containers behind the tunnels of a namespace.
func (p *pass) pods(sp *space) error {
	// Home's ids were looked up before the last namespaces came to light.
	if err := p.ask(sp); err != nil {
		return err
	}
	underlay := map[DevKey]bool{}
	for _, u := range p.snap.Underlays {
		underlay[u.Key()] = true
	}
	routed := sync.OnceValues(func() ([]Dev, error) { return p.routedTunnels(sp) })
	for _, v := range sp.links {
		if v.Kind != "veth" && v.Kind != "netkit" || underlay[sp.dev(v).Key()] {
			continue
		}
		tunnels, l3 := bridged(sp, v), false
		if len(tunnels) == 0 {
			all, err := routed()
			if err != nil {
				return err
			}
			if len(all) == 0 || !sp.routes[l3of(sp, v).Index].any {
				continue
			}
			tunnels, l3 = all, true
		}
		if err := p.pod(sp, v, tunnels, l3); err != nil {
			if p.served(sp.dev(v).Key(), err) {
				return err
			}
			p.skip(sp.dev(v), "%v", err)
		}
	}
	return nil
}

// bridged returns the tunnels that are ports of the same bridge.
func bridged(sp *space, v *link) []Dev {
	b := sp.links[v.Master]
	if b == nil || b.Kind != "bridge" {
		return nil
	}
	var list []Dev
	for _, t := range sp.ours {
		if t.Master == v.Master {
			list = append(list, sp.dev(t))
		}
	}
	return list
}

// l3of returns the device that has the addresses and routes: the bridge of a
// port, else the device itself.
func l3of(sp *space, l *link) *link {
	if b := sp.links[l.Master]; b != nil && b.Kind == "bridge" {
		return b
	}
	return l
}

// routedTunnels returns the tunnels from which the namespace forwards packets.
func (p *pass) routedTunnels(sp *space) ([]Dev, error) {
	var err error
	if sp.routes, err = sp.c.routes(); err != nil {
		return nil, err
	}
	if err := p.enter(sp); err != nil {
		return nil, err
	}
	var list []Dev
	for _, t := range sp.ours {
		if l3 := l3of(sp, t); sp.routes[l3.Index].any && forwards(l3.Name) {
			list = append(list, sp.dev(t))
		}
	}
	return list, nil
}

// forwards reports whether packets that came by a device of the calling
// thread's namespace are routed on.
func forwards(dev string) bool {
	for _, family := range []string{"ipv4", "ipv6"} {
		b, err := os.ReadFile(proc + "/sys/net/" + family + "/conf/" + dev + "/forwarding")
		if err == nil && len(b) > 0 && b[0] != '0' {
			return true
		}
	}
	return false
}

// pod reports one container. What looks like one and is none gets a reason.
func (p *pass) pod(sp *space, v *link, tunnels []Dev, routed bool) error {
	host := sp.dev(v)
	switch {
	case v.Kind == "netkit":
		p.skip(host, "netkit delivers without a queue of its own, there is nothing to steer")
		return nil
	case v.LowerNSID == -1:
		p.skip(host, "both ends are in one namespace")
		return nil
	}
	in := sp.ids[v.LowerNSID]
	if in == nil {
		p.skip(host, "the namespace of its other end was not found: it has no name, and no process is in it or holds it open")
		return nil
	}
	there, err := sp.c.LinkIn(v.LowerNSID, v.Lower)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		return nil // went away while it was scanned; its end is an event
	}
	if err != nil {
		return fmt.Errorf("read device %d: %w", v.Lower, err)
	}
	peer := linkOf(there)
	pod := Pod{Host: host, Peer: in.dev(peer), PeerMTU: peer.MTU, HostQdisc: v.Qdisc, Tunnels: tunnels}
	if in == p.home && peer.Flags&unix.IFF_UP == 0 {
		// Engines make both ends there. What is set on this one goes with it into the container,
		// and could not be taken back.
		p.skip(host, "its other end %s is not in a container yet", pod.Peer)
		return nil
	}
	if peer.Master != 0 {
		p.skip(host, "its other end %s is a port of another device, not a container's", pod.Peer)
		return nil
	}
	if routed && l3of(sp, v) == v && !sp.routes[v.Index].host {
		// A bare link between two hosts looks the same from here. A
		// container sends what is not its own network's by this veth.
		ok, err := p.routesBy(in, peer)
		if err != nil {
			return err
		}
		if !ok {
			p.skip(host, "the namespace of its other end %s has no route by a gateway there, so that it is a link between hosts, not a container's", pod.Peer)
			return nil
		}
	}
	root, err := p.sysfs(in)
	if err != nil {
		return err
	}
	if pod.PeerRxQueues, err = queuesOf(root, pod.Peer, peer.RxQueues); err != nil {
		return err
	}
	p.snap.Pods = append(p.snap.Pods, pod)
	return nil
}

// routesBy reports whether a container has a route by a gateway behind its end
// of the veth. Once seen it is remembered until the next full scan.
func (p *pass) routesBy(in *space, peer *link) (bool, error) {
	if !p.full && in.gateway[peer.Index] {
		return true, nil
	}
	if err := p.dial(in); err != nil {
		return false, err
	}
	routes, err := in.c.routes()
	if err != nil {
		return false, err
	}
	ok := routes[peer.Index].gateway
	in.gateway[peer.Index] = ok
	if !ok && in.retries < maxRetries {
		in.retries++
		p.again = true
	}
	return ok, nil
}
