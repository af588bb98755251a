// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
)

// OnNode is the ground of the node that a scanner sees.
func OnNode(s *node.Scanner) Ground { return ground{s} }

type ground struct{ *node.Scanner }

// Look implements Ground.
func (g ground) Look(u node.Underlay) (State, error) {
	s := State{Queues: u.RxQueues, Changes: map[string]uint64{}, Offloads: map[string]bool{}}
	root, err := g.Sysfs(u.NetnsCookie)
	if err != nil {
		return s, err
	}
	carrier, err := attr(root, u.Dev, "carrier")
	s.Up = err == nil && carrier == "1" // a device that is down has none to read
	for _, r := range u.Receivers {
		changes, err := attr(root, r.Dev, "carrier_changes")
		if err != nil {
			return s, err
		}
		if s.Changes[r.Name], err = strconv.ParseUint(changes, 10, 64); err != nil {
			return s, fmt.Errorf("parse carrier_changes of %s: %w", r.Name, err)
		}
		features, err := g.Features(r.Dev)
		if err != nil {
			return s, err
		}
		for name, f := range features {
			// The kernel's own GRO is a NIC's as little as what it passes on by it.
			if f.Active && strings.HasPrefix(name, "rx-") && name != ethtool.GRO && name != ethtool.UDPForwarding && name != ethtool.GROList {
				s.Offloads[r.Name+" "+name] = true
			}
		}
	}
	return s, nil
}

func attr(root *os.Root, dev node.Dev, name string) (string, error) {
	value, err := netns.ReadAttr(root, "class/net/"+dev.Name+"/"+name)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read %s of %s: %w", name, dev, node.ErrGone)
	}
	if err != nil {
		return "", fmt.Errorf("read %s of %s: %w", name, dev, err)
	}
	return value, nil
}
