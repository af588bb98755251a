// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/node"
)

// A bond's ports join, not the bond.
func TestWhatIsBehindABondIsJoinedByItsPorts(t *testing.T) {
	bond, one, two := node.Dev{NetnsCookie: 1, Ifindex: 4}, node.Dev{NetnsCookie: 1, Ifindex: 2}, node.Dev{NetnsCookie: 1, Ifindex: 3}
	tunnel, host, pod := node.Dev{NetnsCookie: 2, Ifindex: 2}, node.Dev{NetnsCookie: 2, Ifindex: 3}, node.Dev{NetnsCookie: 3, Ifindex: 2}
	list := sitesOf(node.Snapshot{
		Underlays: []node.Underlay{{Dev: bond, Receivers: []node.Receiver{{Dev: one}, {Dev: two}}}},
		Tunnels:   []node.Tunnel{{Dev: tunnel, Underlays: []node.Dev{bond}}},
		Pods:      []node.Pod{{Host: host, Peer: pod, Tunnels: []node.Dev{tunnel}}},
	}).list
	ports := []node.DevKey{one.Key(), two.Key()}
	want := map[uint64][]node.DevKey{1: ports, 2: append([]node.DevKey{tunnel.Key()}, ports...), 3: append([]node.DevKey{tunnel.Key()}, ports...)}
	for _, p := range list {
		if !slices.Equal(p.joins, want[p.cookie]) {
			t.Errorf("namespace %d: joined by %v, want %v", p.cookie, p.joins, want[p.cookie])
		}
		if p.cookie == 1 && len(p.Devs) != 3 {
			t.Errorf("datagrams pass %+v", p.Devs)
		}
	}
	if len(list) != len(want) {
		t.Errorf("%d namespaces", len(list))
	}
}

// What cannot be read keeps datagrams from being joined. Where they are joined already, and by the same devices, they are
// for one check more.
func TestWhatCannotBeReadOnceEndsNothing(t *testing.T) {
	tunnel, host, pod := node.Dev{NetnsCookie: 2, Ifindex: 2}, node.Dev{NetnsCookie: 2, Ifindex: 3}, node.Dev{NetnsCookie: 3, Ifindex: 2}
	other := node.Dev{NetnsCookie: 2, Ifindex: 4}
	one := node.Snapshot{Tunnels: []node.Tunnel{{Dev: tunnel}}, Pods: []node.Pod{{Host: host, Peer: pod, Tunnels: []node.Dev{tunnel}}}}
	two := node.Snapshot{Tunnels: []node.Tunnel{{Dev: tunnel}, {Dev: other}}, Pods: []node.Pod{{Host: host, Peer: pod, Tunnels: []node.Dev{tunnel, other}}}}
	const rule, unread = "a rule", "cannot be read: it changes"
	type step struct {
		snap    node.Snapshot
		joining bool
		said    string // in the pod
		fails   bool
		want    string
	}
	for name, steps := range map[string][]step{
		"before it begins":     {{one, false, "", true, unread}, {one, false, "", false, ""}, {one, false, "", true, unread}},
		"once":                 {{one, false, "", false, ""}, {one, true, "", true, ""}, {one, true, "", false, ""}, {one, true, "", true, ""}},
		"twice":                {{one, true, "", false, ""}, {one, true, "", true, ""}, {one, true, "", true, unread}, {one, true, "", true, unread}, {one, true, "", false, ""}},
		"in place of a reason": {{one, true, rule, false, rule}, {one, true, "", true, rule}, {one, true, "", true, unread}},
		"with a tunnel more":   {{one, true, "", false, ""}, {two, true, "", true, unread}},
		"with a tunnel less":   {{two, true, "", false, ""}, {one, true, "", true, ""}},
		"the first of it":      {{one, true, "", true, unread}, {one, true, "", true, unread}},
	} {
		var now step
		e := NewJoinEligibility(&node.Scanner{}, orNone(nil), nil)
		e.look = func(p *joinSite) (Onlooker, Around, error) {
			switch {
			case p.host:
				return Onlooker{}, Around{}, nil
			case now.fails:
				return Onlooker{}, Around{}, errors.New("it changes")
			}
			return Onlooker{What: now.said}, Around{}, nil
		}
		for i := range steps {
			now = steps[i]
			reasons := map[node.DevKey]string{}
			for _, p := range sitesOf(now.snap).list {
				if err := e.ask(p, now.joining); err != nil {
					t.Fatal(err)
				}
				if !p.host {
					reasons[tunnel.Key()] = e.last[p.cookie].reason.String()
				}
			}
			if got := reasons[tunnel.Key()]; got != now.want && (now.want == "" || !strings.Contains(got, now.want)) {
				t.Errorf("%s, check %d: %q, want %q", name, i+1, got, now.want)
			}
		}
	}
}
