// SPDX-License-Identifier: Apache-2.0

package names

import (
	"testing"

	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// What is said of numbers is said of what people know.
func TestNamesStandForNumbers(t *testing.T) {
	n := Names{home: 1, places: map[uint64]node.Place{
		1: {}, 2: {Network: "i79xvqm2hn", Mount: "1-i79xvqm2hn"}, 3: {Container: "3f2a9c1b7d44", Mount: "0a1b2c3d4e5f"},
		4: {Mount: "7"}, 5: {}, 6: {Balancer: true, Network: "i79xvqm2h", Mount: "lb_i79xvqm2h"}, 7: {Container: "ffffffffffff"},
	}}
	dev := func(cookie uint64) plan.Target { return plan.Target{NetnsCookie: cookie, Ifindex: 9, Name: "eth0"} }
	for in, want := range map[string]string{
		"mask of " + dev(1).String() + ": 0":     "mask of eth0: 0",
		dev(2).String():                          "eth0 of network i79xvqm2hn",
		plan.RPSMask(dev(3), 0).String():         "queues/rx-0/rps_cpus of eth0 of container 3f2a9c1b7d44",
		dev(4).String() + ", " + dev(3).String(): `eth0 of network namespace "7", eth0 of container 3f2a9c1b7d44`,
		dev(5).String():                          "eth0 in a network namespace without a name",
		dev(6).String():                          `eth0 of load balancer "lb_i79xvqm2h"`,
		dev(8).String():                          dev(8).String(), // not known
		node.Dev{NetnsCookie: 3, Ifindex: 2, Name: "eth0"}.String():  "eth0 of container 3f2a9c1b7d44",
		plan.OwnDeviceOf(2, "ol-merge").String():                     "ol-merge of the network namespace of network i79xvqm2hn",
		plan.OwnDeviceOf(1, "ol-merge").String():                     "ol-merge of this network namespace",
		"eth0(3/2); see: ip link set dev 'eth0(3' up":                "eth0 of container 3f2a9c1b7d44; see: ip link set dev 'eth0(3' up",
		"GRO is off; see: nsenter --net='/run/netns/a(3/9)' ip link": "GRO is off; see: nsenter --net='/run/netns/a(3/9)' ip link",
	} {
		if got := n.Text(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
