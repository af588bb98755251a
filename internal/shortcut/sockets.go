// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
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
	for _, s := range list {
		if s.Device != 0 && !slices.ContainsFunc(devs, func(d Passed) bool { return d.Ifindex == s.Device }) {
			continue
		}
		if len(s.Filter) > 0 && !mayTake(s.Filter, s.LinkLayer) {
			continue
		}
		what := "packets that its filter lets pass"
		if len(s.Filter) == 0 {
			what = "all packets"
		}
		if s.Kind == "raw" {
			what = "each UDP packet"
		}
		return Onlooker{fmt.Sprintf("a %s socket (inode %d) gets %s", s.Kind, s.Inode, what), "ss -" + map[string]string{"raw": "w", "packet": "0"}[s.Kind] + "aep"}
	}
	return Onlooker{}
}

// Columns of /proc/net/packet: sk RefCnt Type Proto Iface R Rmem User Inode.
const (
	colType, colProto, colIface, colRunning, colPacketInode = 2, 3, 4, 5, 8
)

// parsePackets reads /proc/net/packet, and leaves out those that get no IP.
func parsePackets(lines []string) (list []Socket, err error) {
	for i, l := range lines {
		f := strings.Fields(l)
		if i == 0 {
			continue
		}
		if len(f) <= colPacketInode {
			return nil, fmt.Errorf("/proc/net/packet has a line of another form: %q", l)
		}
		proto, err := strconv.ParseUint(f[colProto], 16, 16)
		if err != nil {
			return nil, fmt.Errorf("/proc/net/packet: %w", err)
		}
		switch {
		case f[colRunning] == "0":
			continue // bound to nothing, or to a device that is down
		case proto != unix.ETH_P_ALL && proto != etherIPv4 && proto != etherIPv6:
			continue
		}
		dev, err := strconv.Atoi(f[colIface])
		if err != nil {
			return nil, fmt.Errorf("/proc/net/packet: %w", err)
		}
		inode, err := strconv.ParseUint(f[colPacketInode], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("/proc/net/packet: %w", err)
		}
		list = append(list, Socket{Kind: "packet", Inode: inode, Device: dev, LinkLayer: f[colType] != strconv.Itoa(unix.SOCK_DGRAM)})
	}
	return list, nil
}

// parseRaw reads /proc/net/raw or raw6: the port of the local address is the protocol.
func parseRaw(lines []string) (list []Socket, err error) {
	const colLocal, colInode = 1, 9
	for i, l := range lines {
		f := strings.Fields(l)
		if i == 0 {
			continue
		}
		if len(f) <= colInode {
			return nil, fmt.Errorf("/proc/net/raw has a line of another form: %q", l)
		}
		_, port, _ := strings.Cut(f[colLocal], ":")
		proto, err := strconv.ParseUint(port, 16, 16)
		if err != nil {
			return nil, fmt.Errorf("/proc/net/raw: %w", err)
		}
		if proto != unix.IPPROTO_UDP {
			continue
		}
		inode, err := strconv.ParseUint(f[colInode], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("/proc/net/raw: %w", err)
		}
		list = append(list, Socket{Kind: "raw", Inode: inode})
	}
	return list, nil
}

// Of linux/sock_diag.h and linux/packet_diag.h.
const (
	sockDiagByFamily    = 20
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
	err = c.Do(sockDiagByFamily, unix.NLM_F_DUMP, req, func() { clear(filters) }, func(b []byte) error {
		if len(b) < sizeofPacketDiagMsg {
			return nil
		}
		for t, v := range nlsock.Attrs(b[sizeofPacketDiagMsg:]) {
			if t == packetDiagFilter {
				filters[uint64(binary.NativeEndian.Uint32(b[4:]))] = parseFilter(v)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("ask for the filters of packet sockets: %w", err)
	}
	for i, s := range list {
		list[i].Filter = filters[s.Inode]
	}
	return nil
}
