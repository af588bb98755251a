// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
)

// Not in golang.org/x/sys.
const (
	sizeofRuleHdr = 12 // struct fib_rule_hdr
	notSuppressed = 0xffff_ffff
)

// addrs lists the IPv4 addresses of a device.
func (w *Watcher) addrs(index int) ([]netip.Addr, error) {
	req := make([]byte, unix.SizeofIfAddrmsg)
	req[0] = unix.AF_INET
	copy(req[4:], nlsock.Attr32(nil, 0, uint32(index))[unix.SizeofRtAttr:])
	list, err := nlsock.Collect(w.rtnl, unix.RTM_GETADDR, req, func(b []byte) (netip.Addr, bool) { return parseAddr(b, index) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list), nil
}

// parseAddr returns false for what is no address of one host on this device.
func parseAddr(b []byte, index int) (a netip.Addr, ok bool) {
	if len(b) < unix.SizeofIfAddrmsg || b[0] != unix.AF_INET || int(int32(nlsock.U32(b[4:]))) != index {
		return a, false
	}
	a, ok = netip.AddrFromSlice(nlsock.ListOf(b, unix.SizeofIfAddrmsg).Get(unix.IFA_LOCAL)) // IFA_ADDRESS is the other end's if there is one
	return a, ok && a.Is4() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast()
}

// rules lists the rules of IPv4 routing; nil: the kernel knows none.
func (w *Watcher) rules() ([]Rule, error) {
	req := make([]byte, sizeofRuleHdr)
	req[0] = unix.AF_INET
	var list []Rule
	err := w.rtnl.Dump(unix.RTM_GETRULE, req, func() { list = []Rule{} }, func(b []byte) { list = append(list, parseRule(b)) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil // CONFIG_IP_MULTIPLE_TABLES
	}
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	return list, nil
}

// parseRule takes everything that it does not know for a condition.
func parseRule(b []byte) Rule {
	if len(b) < sizeofRuleHdr {
		return Rule{}
	}
	dst, src, tos, table, action, flags := b[1], b[2], b[3], b[4], b[7], nlsock.U32(b[8:])
	r := Rule{Table: uint32(table), Plain: dst == 0 && src == 0 && tos == 0 && action == unix.FR_ACT_TO_TBL && flags == 0}
	for t, v := range nlsock.Attrs(b[sizeofRuleHdr:]) {
		switch t {
		case unix.FRA_PRIORITY:
			r.Priority = nlsock.U32(v)
		case unix.FRA_TABLE:
			r.Table = nlsock.U32(v)
		case unix.FRA_SUPPRESS_PREFIXLEN:
			r.Plain = r.Plain && nlsock.U32(v) == notSuppressed
		case unix.FRA_PROTOCOL, unix.FRA_PAD:
		default:
			r.Plain = false
		}
	}
	return r
}

// defaultRoute looks for one of IPv4 in the main table that leads somewhere
// (unicast). The kernel has no filter for default ones, so that all routes there
// are listed.
func (w *Watcher) defaultRoute() (bool, error) {
	req := make([]byte, unix.SizeofRtMsg)
	req[0], req[4], req[7] = unix.AF_INET, unix.RT_TABLE_MAIN, unix.RTN_UNICAST
	there := false
	err := w.rtnl.Dump(unix.RTM_GETROUTE, req, func() { there = false }, func(b []byte) { there = there || isDefault(b) })
	if errors.Is(err, unix.ENOENT) { // there is no such table
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list routes: %w", err)
	}
	return there, nil
}

// isDefault tells of a route, of whatever type, whether it is the default one of
// IPv4's main table.
func isDefault(b []byte) bool {
	return len(b) >= unix.SizeofRtMsg && b[0] == unix.AF_INET && b[1] == 0 && b[4] == unix.RT_TABLE_MAIN
}
