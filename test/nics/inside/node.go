// SPDX-License-Identifier: Apache-2.0

// Package inside is what runs in the machine whose NIC is tried.
package inside

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/nics"
)

// node is the machine with its overlay.
type node struct {
	pod      *netns.Handle
	ports    []string // NICs
	underlay string
}

// build lays the overlay over the NICs that are there.
func build(how nics.How, mtu int) (*node, error) {
	n := &node{underlay: "eth0", ports: []string{"eth0"}}
	lines := []string{fmt.Sprintf("link set eth0 mtu %d", mtu)}
	switch how {
	case nics.Bond:
		n.underlay, n.ports = "bond0", []string{"eth0", "eth1"}
		lines = append(lines, fmt.Sprintf("link set eth1 mtu %d", mtu),
			"link set bond0 type bond mode active-backup miimon 100", // the module has made it
			"link set eth0 master bond0", "link set eth1 master bond0")
	case nics.VLAN:
		n.underlay = fmt.Sprintf("eth0.%d", nics.VLANID)
		lines = append(lines, "link set eth0 up", fmt.Sprintf("link add link eth0 name %s type vlan id %d", n.underlay, nics.VLANID))
	}
	lines = append(lines,
		fmt.Sprintf("link set %s up", n.underlay),
		fmt.Sprintf("addr add %s/24 dev %s", nics.NearWire, n.underlay),
		fmt.Sprintf("neigh replace %s lladdr %s dev %s nud permanent", nics.FarWire, nics.FarMAC, n.underlay),
		fmt.Sprintf("link add tun0 mtu %d type vxlan id %d dstport %d local %s remote %s dev %s nolearning",
			mtu-nics.Encapsulated, nics.VNI, nics.TunnelPort, nics.NearWire, nics.FarWire, n.underlay),
		fmt.Sprintf("link add br0 mtu %d type bridge stp_state 0 mcast_snooping 0", mtu-nics.Encapsulated),
		"link set br0 up", "link set tun0 master br0 up",
		"netns add pod",
		fmt.Sprintf("link add veth0 mtu %d type veth peer name eth0 mtu %d address %s netns pod", mtu-nics.Encapsulated, mtu-nics.Encapsulated, nics.NearPodMAC),
		"link set veth0 master br0 up")
	err := nics.Batch(lines...)
	// Linux 6.12 keeps the threads of a NIC that was once polled by threads: they are there before,
	// and must not become more.
	for _, p := range n.ports {
		for _, v := range []string{"1", "0"} {
			err = errors.Join(err, os.WriteFile("/sys/class/net/"+p+"/threaded", []byte(v), 0))
		}
	}
	if err != nil {
		return nil, err
	}
	if n.pod, err = netns.OfName("pod"); err != nil {
		return nil, err
	}
	return n, n.pod.Do(func() error {
		// Some emulated NICs finish the checksum of the tunnel's packet instead of the one within.
		if err := ethtool.SetFeature("eth0", "tx-checksum-ip-generic", false); err != nil {
			return err
		}
		return nics.Batch("link set lo up", "link set eth0 up", fmt.Sprintf("addr add %s/24 dev eth0", nics.NearPod),
			fmt.Sprintf("neigh replace %s lladdr %s dev eth0 nud permanent", nics.FarPod, nics.FarPodMAC))
	})
}

// carrier is how often the carrier of a NIC has changed.
func (n *node) carrier() (sum int, err error) {
	for _, p := range n.ports {
		data, err := os.ReadFile("/sys/class/net/" + p + "/carrier_changes")
		if err != nil {
			return 0, err
		}
		changes, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil {
			return 0, err
		}
		sum += changes
	}
	return sum, nil
}

// driver is that of the first NIC.
func (n *node) driver() string {
	to, err := os.Readlink("/sys/class/net/" + n.ports[0] + "/device/driver")
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}
