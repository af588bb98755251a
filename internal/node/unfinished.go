// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/shell"
)

// CannotTell is what becomes of packets whose sender has left the checksum to the receiver.
const CannotTell = "of which an XDP program does not get to know: what it sends on would be dropped as corrupt"

// unfinished is Underlay.Unfinished. features reads those of a device, and how its namespace is reached from that of the
// NICs. Where they cannot be read, as of an end out of sight, the programs tell what comes.
func unfinished(receivers []Receiver, features func(Dev) (map[string]ethtool.Feature, string, error)) string {
	for _, r := range receivers {
		switch {
		case r.VNetHeader:
			return shell.See(fmt.Sprintf("the program behind %s may leave checksums to the receiver (vnet_hdr), %s", r.Name, CannotTell), shell.Command("ip -d link show dev %s", r.Name))
		case r.Driver == "vif": // XEN_NETRXF_csum_blank, drivers/net/xen-netfront.c
			return fmt.Sprintf("what else runs on this Xen host leaves checksums of what it sends to %s to the receiver, %s", r.Name, CannotTell)
		case r.Peer.NetnsCookie == 0:
			continue
		}
		all, path, err := features(r.Peer)
		if err != nil || !leavesChecksums(all) {
			continue
		}
		return shell.See(fmt.Sprintf("%s, the other end of %s, leaves checksums to the receiver, %s", r.Peer.Name, r.Name, CannotTell),
			shell.Command("ethtool -K %s tx off", r.Peer.Name).In(path))
	}
	return ""
}

// FinishChecksums has the other end of a veth, which is out of sight, compute the checksums of what it sends.
func (r Receiver) FinishChecksums() shell.Line {
	return shell.Command("ethtool -K %s tx off  # where the other end of %s is, then restart overlane", cmp.Or(r.Peer.Name, "PEER"), r.Name)
}

// leavesChecksums tells of the features of a veth that it computes no checksum, or not all.
func leavesChecksums(features map[string]ethtool.Feature) bool {
	for name, f := range features {
		if f.Active && strings.HasPrefix(name, "tx-checksum-") {
			return true
		}
	}
	return false
}

// Unfinished is Underlay.Unfinished as it is now: what changes at a veth's other end makes no event here.
func (s *Scanner) Unfinished(u Underlay) string {
	return unfinished(u.Receivers, func(d Dev) (map[string]ethtool.Feature, string, error) {
		all, err := s.Features(d)
		if err != nil || d.NetnsCookie == u.NetnsCookie {
			return all, "", err
		}
		path, err := s.Path(d.NetnsCookie)
		return all, path, err
	})
}

// features reads those of a device during a scan.
func (p *pass) features(d Dev) (all map[string]ethtool.Feature, path string, err error) {
	i := slices.IndexFunc(p.order, func(sp *space) bool { return sp.cookie == d.NetnsCookie })
	if i < 0 {
		return nil, "", ErrGone
	}
	sp := p.order[i]
	if sp != p.home {
		path = sp.path
	}
	all, err = netns.Read(sp.h, func() (map[string]ethtool.Feature, error) { return ethtool.Features(d.Name) })
	return all, path, err
}

// otherEnd is Receiver.Peer of a veth of home.
func (p *pass) otherEnd(l *link) Dev {
	if l.LowerNSID == -1 {
		if o := p.home.links[l.Lower]; o != nil {
			return p.home.dev(o)
		}
		return Dev{}
	}
	o, err := p.home.c.LinkIn(l.LowerNSID, l.Lower)
	if err != nil {
		return Dev{Ifindex: l.Lower}
	}
	d := Dev{Ifindex: o.Index, Name: o.Name}
	if sp := p.home.ids[l.LowerNSID]; sp != nil {
		d.NetnsCookie = sp.cookie
	}
	return d
}
