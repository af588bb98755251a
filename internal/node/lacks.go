// SPDX-License-Identifier: Apache-2.0

package node

import "slices"

// LacksNIC says what there is not, without which no program of overlane's sees a packet of an overlay: a tunnel, or a NIC
// by which its packets come. Empty: both are there.
func (s Snapshot) LacksNIC() string {
	switch {
	case len(s.Tunnels) == 0 && s.skipped(TunnelPart) == nil:
		return "there is no VXLAN or Geneve tunnel yet"
	case len(s.Tunnels) == 0:
		return s.because("no tunnel is served", TunnelPart)
	case len(s.Underlays) == 0:
		return s.because("no NIC is served", TunnelPart, UnderlayPart)
	}
	return ""
}

// LacksPod is LacksNIC, and says as well that there is no pod behind a tunnel whose packets come by a NIC.
func (s Snapshot) LacksPod() string {
	if why := s.LacksNIC(); why != "" {
		return why
	}
	served := func(d Dev) bool {
		return slices.ContainsFunc(s.Tunnels, func(t Tunnel) bool { return t.Same(d) && len(t.Underlays) > 0 })
	}
	switch {
	case len(s.Pods) == 0 && len(s.Stacked) > 0:
		return "no pod has an end on the host's side: " + s.Stacked[0].Name + ": " + s.Stacked[0].Alone()
	case len(s.Pods) == 0 && s.skipped(PodPart) == nil:
		return "there is no pod yet"
	case len(s.Pods) == 0:
		return s.because("no pod is served", PodPart)
	case !slices.ContainsFunc(s.Pods, func(p Pod) bool { return slices.ContainsFunc(p.Tunnels, served) }):
		return s.because("no tunnel that leads to a pod is served", TunnelPart)
	}
	return ""
}

// because adds why the first device of these parts was left out.
func (s Snapshot) because(what string, parts ...Part) string {
	if sk := s.skipped(parts...); sk != nil {
		return what + ": " + sk.Dev.Name + ": " + sk.Reason
	}
	return what
}

// skipped is the first device of these parts that was left out; nil: none was.
func (s Snapshot) skipped(parts ...Part) *Skip {
	at := slices.IndexFunc(s.Skipped, func(sk Skip) bool { return slices.Contains(parts, sk.Part) })
	if at < 0 {
		return nil
	}
	return &s.Skipped[at]
}
