// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"slices"
	"testing"

	"github.com/overlane/overlane/internal/node"
)

// A bond's ports join, not the bond.
func TestWhatIsBehindABondIsJoinedByItsPorts(t *testing.T) {
	bond, one, two := node.Dev{NetnsCookie: 1, Ifindex: 4}, node.Dev{NetnsCookie: 1, Ifindex: 2}, node.Dev{NetnsCookie: 1, Ifindex: 3}
	tunnel, host, pod := node.Dev{NetnsCookie: 2, Ifindex: 2}, node.Dev{NetnsCookie: 2, Ifindex: 3}, node.Dev{NetnsCookie: 3, Ifindex: 2}
	list := joinSites(node.Snapshot{
		Underlays: []node.Underlay{{Dev: bond, Receivers: []node.Receiver{{Dev: one}, {Dev: two}}}},
		Tunnels:   []node.Tunnel{{Dev: tunnel, Underlays: []node.Dev{bond}}},
		Pods:      []node.Pod{{Host: host, Peer: pod, Tunnels: []node.Dev{tunnel}}},
	})
	ports := []node.DevKey{one.Key(), two.Key()}
	want := map[uint64][]node.DevKey{1: ports, 2: append([]node.DevKey{tunnel.Key()}, ports...), 3: append([]node.DevKey{tunnel.Key()}, ports...)}
	for _, p := range list {
		if !slices.Equal(p.joins, want[p.cookie]) {
			t.Errorf("namespace %d: joined by %v, want %v", p.cookie, p.joins, want[p.cookie])
		}
		if p.cookie == 1 && len(p.devs) != 3 {
			t.Errorf("datagrams pass %+v", p.devs)
		}
	}
	if len(list) != len(want) {
		t.Errorf("%d namespaces", len(list))
	}
}
