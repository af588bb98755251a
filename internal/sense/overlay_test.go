// SPDX-License-Identifier: Apache-2.0

package sense

import (
	"slices"
	"testing"

	"github.com/overlane/overlane/internal/node"
)

// The tunnels that receive most are picked, and one that was picked is not left for one that receives a little more.
func TestTheBusiestTunnelsStayForAWhile(t *testing.T) {
	var tunnels []node.Tunnel
	o := Overlay{load: map[node.DevKey]float64{}}
	for i := range 300 {
		dev := node.Dev{NetnsCookie: 1, Ifindex: i}
		tunnels = append(tunnels, node.Tunnel{Dev: dev})
		o.load[dev.Key()] = float64(i)
	}
	picked := map[int]bool{}
	stays := func(k node.DevKey) bool { return picked[k.Ifindex] }
	pick := func(want ...int) {
		t.Helper()
		var got []int
		for _, b := range o.Busiest(tunnels, len(want), stays) {
			got = append(got, b.Ifindex)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("picked %v, want %v", got, want)
		}
		clear(picked)
		for _, i := range got {
			picked[i] = true
		}
	}
	pick(298, 299)
	o.load[node.DevKey{NetnsCookie: 1, Ifindex: 7}] = 500
	pick(298, 299)
	o.load[node.DevKey{NetnsCookie: 1, Ifindex: 7}] = 600
	pick(7, 299)
	clear(o.load)
	pick(7, 299)
	if got := o.Busiest(tunnels[:2], 2, stays); len(got) != 2 {
		t.Errorf("of two, %d are picked", len(got))
	}
}
