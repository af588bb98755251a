// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"

	"github.com/overlane/overlane/internal/lab/bed"
)

// variant is a way to set up the receiving host.
type variant struct {
	name string
	what string
	host bool    // traffic without the overlay
	nic  bed.NIC // the only mode of the wire in which it means something
	why  string
	// start changes the bed from the plain overlay to the variant.
	start func(context.Context, *env, scenario) (session, error)
}

// session is a variant that is in force.
type session struct {
	// end takes back what Reset does not, and says what the variant did.
	end func() (map[string]float64, error)
}

func (s session) stop() (map[string]float64, error) {
	if s.end == nil {
		return nil, nil
	}
	return s.end()
}

// variants in the order in which "all" runs them.
var variants []variant

func init() {
	// Not a literal: rps-best measures, and so leads back to this list.
	variants = []variant{
		{name: "host", what: "no overlay", host: true, start: plain},
		{name: "overlay", what: "the plain overlay, stock settings", start: plain},
		{name: "rps", what: "RPS over all cores on the NIC", start: startRPS},
	}
}

// VariantNames lists the variants.
func VariantNames() []string {
	var names []string
	for _, v := range variants {
		names = append(names, v.name)
	}
	return names
}

// DescribeVariant says what a variant is, in a few words.
func DescribeVariant(name string) string {
	v, _ := findVariant(name)
	return v.what
}

func findVariant(name string) (variant, bool) {
	for _, v := range variants {
		if v.name == name {
			return v, true
		}
	}
	return variant{}, false
}

func plain(context.Context, *env, scenario) (session, error) { return session{}, nil }

func startRPS(_ context.Context, e *env, _ scenario) (session, error) {
	rx := e.bed.Receiver()
	return session{}, bed.SetRPS(rx.NS, rx.Wire, e.cores.Steer)
}
