// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"
)

// Variants that others are compared with.
const (
	Overlay    = "overlay"
	OverlayXDP = "overlay-xdp"
	RPSBest    = "rps-best"
	Host       = "host"
)

// family is the mechanism of a variant; of host-priority, too.
func family(variant string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(variant, Host+"-"), "-")
	return name
}

// IsMechanism tells variants that run a mechanism of overlane from those that
// run the stock kernel.
func IsMechanism(variant string) bool {
	return slices.Contains([]string{"pipeline", "microflows", "priority", "aggregate", "express", "auto"}, family(variant))
}

// mayUseXDP is true for variants that attach XDP to the wire, or are free to:
// pipeline and auto choose their tier themselves. On a veth wire XDP costs
// something that it does not cost on a real NIC, so these also answer to the
// overlay with an empty XDP program.
func mayUseXDP(variant string) bool {
	if !IsMechanism(variant) || slices.Contains(strings.Split(variant, "-"), "tc") {
		return false
	}
	return family(variant) != "aggregate" || strings.HasSuffix(variant, "-xdp")
}

// references lists what a variant is compared with, given what was run.
func references(variant, baseline string, ran []string) []string {
	var refs []string
	add := func(ref string, applies bool) {
		if applies && ref != variant && slices.Contains(ran, ref) && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	add(baseline, true)
	onHost := strings.HasPrefix(variant, Host+"-")
	add(Host, onHost)
	add(OverlayXDP, mayUseXDP(variant) && !onHost)
	add(RPSBest, family(variant) == "pipeline")
	return refs
}
