// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	"github.com/overlane/overlane/internal/netns"
)

// NoDevice is the value of an OwnDevice that does not exist.
const NoDevice = "none"

// OwnVethMTU is the MTU of both ends: what a veth can have at most.
const OwnVethMTU = 65535

// OwnVeth spells the value of an OwnDevice: a veth with an index and a peer of that name in
// the same namespace.
func OwnVeth(ifindex int, peer string) string {
	return fmt.Sprintf("veth ifindex=%d peer=%s", ifindex, peer)
}

// ParseOwnVeth reads what OwnVeth wrote.
func ParseOwnVeth(value string) (ifindex int, peer string, err error) {
	n, err := fmt.Sscanf(value, "veth ifindex=%d peer=%s", &ifindex, &peer)
	if err != nil || n != 2 || ifindex <= 0 || !netns.ValidDeviceName(peer) || OwnVeth(ifindex, peer) != value {
		return 0, "", fmt.Errorf("%q is no device that could be made", value)
	}
	return ifindex, peer, nil
}

// OwnDeviceOf is the setting that stands for a device of that name in a namespace.
func OwnDeviceOf(netnsCookie uint64, name string) Setting {
	return Setting{Target: Target{NetnsCookie: netnsCookie}, Kind: OwnDevice, Attr: name}
}
