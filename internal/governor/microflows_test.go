// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"slices"
	"testing"
)

// upTo are the cores 0 to n-1.
func upTo(n int) (cores []int) {
	for c := range n {
		cores = append(cores, c)
	}
	return cores
}

func TestPlacesOfMicroflows(t *testing.T) {
	for name, c := range map[string]struct {
		tier             Tier
		cores, nic       []int
		most             int
		merge            bool
		lanes, next, pod []int
		here             bool
	}{
		"two cores, cut by XDP":           {tier: XDP, cores: upTo(2), nic: []int{0}, most: 2, merge: true, lanes: []int{1}, pod: []int{1}, here: true},
		"two cores, in no order":          {tier: XDP, cores: upTo(2), nic: []int{1}, most: 2, lanes: []int{0}, here: true},
		"two cores, cut behind the NIC's": {tier: TC, cores: upTo(2), nic: []int{0}, most: 2, merge: true, next: []int{1}, pod: []int{1}, here: true},
		"three cores":                     {tier: XDP, cores: upTo(3), nic: []int{0}, most: 2, merge: true, lanes: []int{1, 2}, pod: []int{2}},
		"four cores":                      {tier: XDP, cores: upTo(4), nic: []int{0}, most: 2, merge: true, lanes: []int{1, 2}, pod: []int{3}},
		"six cores: two for each branch":  {tier: XDP, cores: upTo(6), nic: []int{0}, most: 2, merge: true, lanes: []int{1, 2}, next: []int{3, 4}, pod: []int{5}},
		"five cores, in no order":         {tier: XDP, cores: upTo(5), nic: []int{0}, most: 2, lanes: []int{1, 2}, next: []int{3, 4}},
		"six cores behind the NIC's":      {tier: TC, cores: upTo(6), nic: []int{0}, most: 4, merge: true, next: []int{1, 2}, pod: []int{3}},
		"as many as are needed":           {tier: XDP, cores: upTo(16), nic: []int{0}, most: 8, merge: true, lanes: []int{1, 2, 3, 4}, pod: []int{5}},
		"as many, in no order":            {tier: XDP, cores: upTo(16), nic: []int{0}, most: 8, lanes: upTo(9)[1:]},
		"no core but the NICs'":           {tier: XDP, cores: upTo(2), nic: upTo(2), most: 2},
		"one that is free, one of others": {tier: XDP, cores: []int{1}, nic: []int{0}, most: 2},
		"nothing has come":                {tier: XDP, cores: upTo(4), most: 2},
	} {
		t.Run(name, func(t *testing.T) {
			l := PlaceMicroflows(c.tier, Machine{Cores: c.cores, NIC: c.nic}, c.most, c.merge, Costs{})
			if !slices.Equal(l.NIC, c.lanes) || !slices.Equal(l.Tunnel, c.next) || !slices.Equal(l.Pod, c.pod) || l.Here != c.here {
				t.Errorf("lanes %v and %v, behind the merge %v, here %t; want %v and %v, %v, %t",
					l.NIC, l.Tunnel, l.Pod, l.Here, c.lanes, c.next, c.pod, c.here)
			}
			if none := len(c.lanes)+len(c.next) == 0; l.None() != none || !none && l.Gain <= 1 || l.Reason == "" {
				t.Errorf("gain %.2f, %q", l.Gain, l.Reason)
			}
		})
	}
}

// Behind the NIC's stage nothing is gained where that stage is nearly all there is to do.
func TestMicroflowsBehindTheNICsStageThatDoNotPay(t *testing.T) {
	c := Costs{NIC: 2000, Tunnel: 50, Pod: 50, Hop: 250}
	for tier, pays := range map[Tier]bool{TC: false, XDP: true} {
		if l := PlaceMicroflows(tier, Machine{Cores: upTo(4), NIC: []int{0}}, 2, true, c); l.Pays() != pays {
			t.Errorf("tier %d: %t at a gain of %.2f", tier, l.Pays(), l.Gain)
		}
	}
}
