// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
	"github.com/overlane/overlane/internal/shell"
)

// Socket is one that gets packets as they pass, besides those that they are sent to.
type Socket struct {
	Kind   string // "packet", "raw"
	Inode  uint64
	Device int // 0: any
	// Filter is what it lets pass; nil: all.
	Filter    []unix.SockFilter
	LinkLayer bool // it sees the Ethernet header
}

// seenBy says which socket would get joined datagrams. A socket that is bound to
// another device than those gets none.
func seenBy(list []Socket, devs []Passed) Onlooker {
	steps := 0 // in all filters
	for _, s := range list {
		if s.Device != 0 && !slices.ContainsFunc(devs, func(d Passed) bool { return d.Ifindex == s.Device }) {
			continue
		}
		if len(s.Filter) > 0 && !mayTake(s.Filter, s.LinkLayer, &steps) {
			continue
		}
		what := "packets that its filter may let pass"
		if len(s.Filter) == 0 {
			what = "all packets"
		}
		if s.Kind == "raw" {
			what = "each UDP packet"
		}
		return Onlooker{fmt.Sprintf("a %s socket (inode %d) gets %s", s.Kind, s.Inode, what), shell.Command("ss -%saep", map[string]string{"raw": "w", "packet": "0"}[s.Kind])}
	}
	return Onlooker{}
}

// parsePacket reads a line of /proc/net/packet: sk RefCnt Type Proto Iface R Rmem User Inode. It is false for a
// socket that gets no IP.
func parsePacket(line string) (s Socket, ok bool, err error) {
	var sk string
	var refs, typ, proto, running, memory, user int
	if _, err := fmt.Sscanf(line, "%s %d %d %x %d %d %d %d %d", &sk, &refs, &typ, &proto, &s.Device, &running, &memory, &user, &s.Inode); err != nil {
		return s, false, fmt.Errorf("/proc/net/packet has a line of another form: %q: %w", line, err)
	}
	s.Kind, s.LinkLayer = "packet", typ != unix.SOCK_DGRAM
	// One that does not run is bound to nothing, or to a device that is down.
	return s, running != 0 && (proto == unix.ETH_P_ALL || proto == unix.ETH_P_IP || proto == unix.ETH_P_IPV6), nil
}

// parseRaw reads a line of /proc/net/raw or raw6: the port of the local address is the protocol. It is false for a
// socket that gets no UDP.
func parseRaw(line string) (s Socket, ok bool, err error) {
	var slot, local, remote, state, queues, timer, retries, user, timeout string
	if _, err := fmt.Sscan(line, &slot, &local, &remote, &state, &queues, &timer, &retries, &user, &timeout, &s.Inode); err != nil {
		return s, false, fmt.Errorf("/proc/net/raw has a line of another form: %q: %w", line, err)
	}
	_, port, _ := strings.Cut(local, ":")
	proto, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return s, false, fmt.Errorf("/proc/net/raw: %w", err)
	}
	s.Kind = "raw"
	return s, proto == unix.IPPROTO_UDP, nil
}

// Of linux/sock_diag.h and linux/packet_diag.h.
const (
	packetShowFilter    = 1 << 5
	packetDiagFilter    = 7
	sizeofPacketDiagReq = 20
	sizeofPacketDiagMsg = 16
)

// readFilters asks for the filters of packet sockets, on a thread in the namespace. Where the kernel has
// this as a module it is loaded, as ss(8) does; it is asked only where such sockets are.
func readFilters(list []Socket) error {
	c, err := nlsock.Dial(unix.NETLINK_SOCK_DIAG, make([]byte, 1<<16))
	if err != nil {
		return err
	}
	defer c.Close()
	req := make([]byte, sizeofPacketDiagReq)
	req[0] = unix.AF_PACKET
	binary.NativeEndian.PutUint32(req[8:], packetShowFilter)
	filters := map[uint64][]unix.SockFilter{}
	err = c.Dump(unix.SOCK_DIAG_BY_FAMILY, req, func() { clear(filters) }, func(b []byte) {
		if len(b) >= sizeofPacketDiagMsg {
			filters[uint64(nlsock.U32(b[4:]))] = parseFilter(nlsock.ListOf(b, sizeofPacketDiagMsg).Get(packetDiagFilter))
		}
	})
	if err != nil {
		return fmt.Errorf("ask for the filters of packet sockets: %w", err)
	}
	for i, s := range list {
		list[i].Filter = filters[s.Inode]
	}
	return nil
}

// mostSockets is most for the UDP sockets of a host, of which a name server has thousands.
const mostSockets = 1 << 20

// TakenByGRO tells whether the namespace that the calling thread is in has a UDP socket that is bound to a port and to no
// address. GRO takes datagrams to that port for the socket's, whatever their address, and joins none unless it asked for
// that (udp4_gro_lookup_skb, udp_gro_receive).
func TakenByGRO(port uint16) (bool, error) {
	for _, path := range []string{"/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"} {
		sockets, err := first(path, mostSockets)
		if err != nil && !errors.Is(err, errLong) {
			return false, err
		}
		if slices.ContainsFunc(sockets, func(line string) bool { return bound(line, port) }) {
			return true, nil
		}
	}
	return false, nil
}

// bound reads a line of /proc/net/udp or udp6: is the socket bound to this port, and to no address on either side?
func bound(line string, port uint16) bool {
	f := strings.Fields(line)
	if len(f) < 3 {
		return false
	}
	local, at, _ := strings.Cut(f[1], ":")
	return at == fmt.Sprintf("%04X", port) && strings.Trim(local, "0") == "" && strings.Trim(f[2], "0:") == ""
}
