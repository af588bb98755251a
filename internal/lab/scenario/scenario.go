// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
)

// scenario is a kind of traffic and what is measured of it.
type scenario struct {
	name  string
	what  string
	flows int
	size  int
	// sizes makes a series of its own for each: name/label.
	sizes []sized
	// measure runs the traffic once, in whatever variant the bed is in.
	measure func(context.Context, *env) (map[string]float64, error)
}

type sized struct {
	label string
	size  int
}

const small = 64

var scenarios = []scenario{
	{name: "udp-one", what: "one UDP flow of small packets, offered above saturation", flows: 1, size: small, measure: measureFlood},
	{name: "udp-many", what: "several UDP flows of small packets", flows: 4, size: small, measure: measureFlood},
}

// Names lists the scenarios.
func Names() []string {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

// Describe says what a scenario is, in a few words.
func Describe(name string) string {
	s, _ := find(name)
	return s.what
}

func find(name string) (scenario, bool) {
	for _, s := range scenarios {
		if s.name == name {
			return s, true
		}
	}
	return scenario{}, false
}
