// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func upTo(n int) (cores []int) {
	for c := range n {
		cores = append(cores, c)
	}
	return cores
}

func TestRolesOfCores(t *testing.T) {
	for _, tt := range []struct {
		cores, queues int
		nic           NIC
		want          string
	}{
		{1, 1, Thread, "receive 0, applications 0, sender 0, generator 0"},
		{2, 1, Thread, "receive 0, lanes 1, applications 1, sender 1, generator 1"},
		{2, 2, Thread, "receive 0-1, applications 1, sender 1, generator 0-1"},
		{2, 1, Softirq, "receive 0, lanes 1, applications 1, sender 1, generator 0-1"},
		{3, 1, Thread, "receive 0, lanes 1-2, applications 1-2, sender 2, generator 2"},
		{4, 1, Thread, "receive 0, lanes 1, applications 2, sender 3, generator 3"},
		{5, 1, Thread, "receive 0, lanes 1, applications 2, sender 3, generator 4"},
		{6, 1, Thread, "receive 0, lanes 1-2, applications 3, sender 4, generator 5"},
		{8, 1, Thread, "receive 0, lanes 1-3, applications 4-5, sender 6, generator 7"},
		{8, 1, Softirq, "receive 0, lanes 1-4, applications 5-6, sender 7, generator 0"},
		{8, 2, Thread, "receive 0-1, lanes 2-3, applications 4, sender 5, generator 6-7"},
		{8, 4, Thread, "receive 0-3, lanes 4-5, applications 6, sender 7, generator 4-7"},
		{16, 1, Thread, "receive 0, lanes 1-9, applications 10-13, sender 14, generator 15"},
		{16, 4, Thread, "receive 0-3, lanes 4-8, applications 9-10, sender 11, generator 12-15"},
		{16, 8, Thread, "receive 0-7, lanes 8-13, applications 14, sender 15, generator 8-15"},
	} {
		t.Run(fmt.Sprintf("%d cores, %d queues, %s", tt.cores, tt.queues, tt.nic), func(t *testing.T) {
			if got := placeOn(upTo(tt.cores), tt.queues, tt.nic).String(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestBusyCoresAreLanes(t *testing.T) {
	for _, tt := range []struct {
		cores, queues, busy int
		want                string // empty: it cannot be
	}{
		{2, 1, 0, "receive 0, lanes 1, applications 1, sender 1, generator 1"},
		{2, 1, 1, ""}, // the generator gets what others leave
		{4, 1, 1, "receive 0, lanes 1, busy 1, applications 2, sender 3, generator 3"},
		{4, 1, 2, ""},
		{8, 1, 2, "receive 0, lanes 1-3, busy 1-2, applications 4-5, sender 6, generator 7"},
		{8, 4, 1, ""},
		{16, 4, 3, "receive 0-3, lanes 4-8, busy 4-6, applications 9-10, sender 11, generator 12-15"},
		{16, 4, -1, ""},
	} {
		c := placeOn(upTo(tt.cores), tt.queues, Thread)
		err := c.KeepBusy(tt.busy)
		if got := c.String(); (err != nil) != (tt.want == "") || err == nil && got != tt.want {
			t.Errorf("%d cores, %d queues, %d busy: %v\ngot  %s\nwant %s", tt.cores, tt.queues, tt.busy, err, got, tt.want)
		}
	}
}

// All that was measured on two cores was measured with these.
func TestRolesOfTwoCoresStay(t *testing.T) {
	for _, tt := range []struct {
		queues int
		nic    NIC
		want   Cores
	}{
		{1, Thread, Cores{NIC: []int{0}, Gen: []int{1}, Paced: 1, Sender: 1, Steer: []int{0, 1}, Apps: 1, Servers: []int{1}}},
		{2, Thread, Cores{NIC: []int{0, 1}, Gen: []int{0, 1}, Paced: 1, Sender: 1, Steer: []int{0, 1}, Apps: 1, Servers: []int{1}}},
		{1, Softirq, Cores{NIC: []int{0}, Gen: []int{0}, Paced: 1, Sender: 1, Steer: []int{0, 1}, Apps: 1, Servers: []int{1}}},
	} {
		c := placeOn([]int{0, 1}, tt.queues, tt.nic)
		if diff := cmp.Diff(tt.want, c); diff != "" {
			t.Errorf("%d queues, %s (-want +got):\n%s", tt.queues, tt.nic, diff)
		}
		if c.senderApart() || c.Node() != nil {
			t.Errorf("%d queues, %s: the sending host has a core of its own", tt.queues, tt.nic)
		}
	}
}

func TestEachRoleHasItsCores(t *testing.T) {
	for n := fewCores; n <= 64; n++ {
		for queues := 1; queues <= min(n, MaxQueues); queues++ {
			c := placeOn(upTo(n), queues, Thread)
			t.Run(fmt.Sprintf("%d cores, %d queues", n, queues), func(t *testing.T) {
				for q, core := range c.Gen {
					if core%queues != q {
						t.Errorf("queue %d is fed by core %d", q, core)
					}
				}
				if got := len(without(c.NIC, c.Steer)); got > 0 {
					t.Errorf("%d cores that poll may not be steered to", got)
				}
				if 2*queues > n {
					return // each core polls, or nearly
				}
				if shared := len(without(c.Gen, without(c.Gen, c.NIC))); shared > 0 {
					t.Errorf("%d cores poll and generate", shared)
				}
				if lanes := without(c.Steer, c.NIC); len(lanes) == 0 && n > 4 {
					t.Errorf("no lane: %s", c)
				}
				if c.Apps != c.Servers[0] || !c.senderApart() || slices.Contains(c.Node(), c.Sender) {
					t.Errorf("applications at %d and %v, the sender at %d, the receiving host at %v", c.Apps, c.Servers, c.Sender, c.Node())
				}
				if n < 2*queues+3 {
					return // the sender shares a generator's
				}
				all := slices.Concat(c.Gen, c.Steer, c.Servers, []int{c.Sender})
				slices.Sort(all)
				if !slices.Equal(all, upTo(n)) {
					t.Errorf("not one role for each core: %s", c)
				}
			})
		}
	}
}

// Some cores may be offline, or not for this program.
func TestRolesOfCoresWithGaps(t *testing.T) {
	c := placeOn([]int{1, 2, 4, 6, 7, 9, 10, 12}, 2, Thread)
	const want = "receive 1-2, lanes 4,6, applications 7, sender 10, generator 9,12"
	if got := c.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
