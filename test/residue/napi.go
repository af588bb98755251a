// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The netdev generic netlink family, from linux/netdev.h.
const (
	netdevFamily   = "netdev"
	netdevNAPIGet  = 11
	napiIfindex    = 1
	napiPID        = 4
	genlHeaderSize = 4
)

// readNAPI writes down the threads that poll each device's queues, with their
// policy and cores but not their numbers: a new thread of the same kind in the
// place of an old one is no residue. It runs on a thread in the namespace.
func readNAPI(s *Snapshot, ns uint64, rule counts, devices []device) error {
	threads := map[int][]string{}
	answers, err := napis()
	if err != nil {
		return fmt.Errorf("list NAPI instances: %w", err)
	}
	for _, b := range answers {
		if len(b) < genlHeaderSize {
			continue
		}
		a := attrs(b[genlHeaderSize:])
		index, pid := int(number(a[napiIfindex])), int(number(a[napiPID]))
		if pid == 0 {
			continue
		}
		how, err := scheduling(pid)
		if err != nil {
			if gone(err) {
				continue
			}
			return err
		}
		threads[index] = append(threads[index], how)
	}
	for _, d := range devices {
		slices.Sort(threads[d.index])
		s.add(key{ns, d.name, "NAPI threads"}, rule, "%s", orNone(strings.Join(threads[d.index], "; ")))
	}
	return nil
}

// napis asks for every NAPI instance of the namespace; none before Linux 6.8.
func napis() ([][]byte, error) {
	request := append([]byte{unix.CTRL_CMD_GETFAMILY, 1, 0, 0}, attr(unix.CTRL_ATTR_FAMILY_NAME, []byte(netdevFamily+"\x00"))...)
	families, err := ask(unix.NETLINK_GENERIC, unix.GENL_ID_CTRL, 0, request)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find family %s: %w", netdevFamily, err)
	}
	if len(families) == 0 || len(families[0]) < genlHeaderSize {
		return nil, fmt.Errorf("find family %s: short answer", netdevFamily)
	}
	id := uint16(number(attrs(families[0][genlHeaderSize:])[unix.CTRL_ATTR_FAMILY_ID]))
	answers, err := dump(unix.NETLINK_GENERIC, id, []byte{netdevNAPIGet, 1, 0, 0})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	return answers, err
}
