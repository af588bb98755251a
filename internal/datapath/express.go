// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
)

// ExpressKey is a NIC where frames come in, a network and a pod's address in it.
type ExpressKey struct {
	NIC  int // ifindex, in the namespace of the underlays
	VNI  uint32
	Port uint16 // UDP, of the tunnel
	MAC  [6]byte
}

// ExpressPath is the path of such frames straight to the pod.
type ExpressPath struct {
	Host   Device     // the host's end of the pod's veth
	Pod    CellDevice // the pod's end, whose polls tell how far it is
	MaxLen int        // of an inner frame; longer ones take the full path
	// Refresh is how often the stack is to see a frame of each sender. 0: never.
	Refresh time.Duration
	Local   netip.Addr // IPv4: the outer destination
	Remote  netip.Addr // IPv4: the only outer source that the tunnel takes; invalid: any
	NICMAC  [6]byte
	// TunnelMAC is the tunnel's own address.
	TunnelMAC [6]byte
	// Fixed: the tunnel drops frames of some senders that come from another host; see FixSenders.
	Fixed bool
}

// Sender is a host or pod that sends in a network, by the tunnel that takes its frames.
type Sender struct {
	VNI  uint32
	Port uint16
	MAC  [6]byte
}

// CellDevice is a device as the tracing of polls knows it.
type CellDevice struct {
	Ifindex  int
	NetnsIno uint64
}

// expressPaths are those that the kernel knows, and the ports that they lead to.
type expressPaths struct {
	paths  map[ExpressKey]underlayOlExpressEntry
	ports  map[CellDevice]uint32
	fixed  map[Sender]netip.Addr
	next   uint32 // port to be given away
	traced bool
	unread io.Closer // while it is counted
}

// MaxPorts is the number of pods that can have a path.
const MaxPorts = int(stagesOlLimitOL_PORTS)

// ErrTooManyPods says that some pods have no express path.
var ErrTooManyPods = errors.New("too many pods")

// AddPath opens a path, or changes one. Frames take it once SetExpress has allowed that.
func (d *Datapath) AddPath(k ExpressKey, w ExpressPath) error {
	if err := d.needXDP(); err != nil {
		return err
	}
	if !w.Local.Is4() {
		return fmt.Errorf("open an express path for %s: the outer address %s is not IPv4", net.HardwareAddr(k.MAC[:]), w.Local)
	}
	port, err := d.openPort(w)
	if err != nil {
		return fmt.Errorf("open an express path for %s: %w", net.HardwareAddr(k.MAC[:]), err)
	}
	v := underlayOlExpressEntry{
		Port: port, MaxLen: uint32(w.MaxLen),
		RefreshUs: uint32(min(w.Refresh, maxRefresh) / time.Microsecond),
		Fixed:     uint32(bit(w.Fixed)),
	}
	v.Tunnel.Version = 4
	v.Tunnel.Local[0], v.Tunnel.Remote[0] = onWire(w.Local), onWire(w.Remote)
	v.Tunnel.Nic, v.Tunnel.Mac = w.NICMAC, w.TunnelMAC
	if old, ok := d.express.paths[k]; ok && old == v {
		return nil
	}
	if err := d.xdp.OlExpressEntries.Put(k.abi(), v); err != nil {
		return fmt.Errorf("open an express path for %s: %w", net.HardwareAddr(k.MAC[:]), err)
	}
	d.express.paths[k] = v
	return d.pathsChanged()
}

// onWire is an IPv4 address as packets have it, 0 where it is none.
func onWire(a netip.Addr) uint32 {
	if !a.Is4() {
		return 0
	}
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

// pathsChanged has the programs look at the paths anew.
func (d *Datapath) pathsChanged() error {
	d.policy.Entries++
	return d.writePolicy()
}

// WithdrawPath has flows leave a path: in order if that is a matter of a few milliseconds, at once
// after that. ClosePath may follow once they have.
func (d *Datapath) WithdrawPath(k ExpressKey) error {
	v, ok := d.express.paths[k]
	if !ok || v.Withdrawn != 0 {
		return nil
	}
	now, err := Now()
	if err != nil {
		return err
	}
	v.Withdrawn = now
	if err := d.xdp.OlExpressEntries.Put(k.abi(), v); err != nil {
		return fmt.Errorf("withdraw the express path for %s: %w", net.HardwareAddr(k.MAC[:]), err)
	}
	d.express.paths[k] = v
	return d.pathsChanged()
}

// ClosePath takes a path away, and the pod's port if it was the last that led there.
func (d *Datapath) ClosePath(k ExpressKey) error {
	v, ok := d.express.paths[k]
	if !ok {
		return nil
	}
	if err := d.xdp.OlExpressEntries.Delete(k.abi()); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("close the express path for %s: %w", net.HardwareAddr(k.MAC[:]), err)
	}
	delete(d.express.paths, k)
	if err := d.pathsChanged(); err != nil {
		return err
	}
	for _, other := range d.express.paths {
		if other.Port == v.Port {
			return nil
		}
	}
	return d.closePort(v.Port)
}

// MaxSenders is the number of senders that FixSenders takes.
const MaxSenders = int(stagesOlLimitOL_SENDERS)

// FixSenders tells behind which host each of these senders is; an invalid address: behind none. Their
// frames from elsewhere, which the tunnel drops, take no path that is Fixed.
func (d *Datapath) FixSenders(want map[Sender]netip.Addr) error {
	if maps.Equal(want, d.express.fixed) {
		return nil
	}
	if err := d.needXDP(); err != nil {
		return err
	}
	for s, host := range want {
		if was, ok := d.express.fixed[s]; ok && was == host {
			continue
		}
		if err := d.xdp.OlExpressFixed.Put(s.abi(), onWire(host)); err != nil {
			return fmt.Errorf("tell where the sender %s is: %w", net.HardwareAddr(s.MAC[:]), err)
		}
		d.express.fixed[s] = host
	}
	for s := range d.express.fixed {
		if _, ok := want[s]; ok {
			continue
		}
		if err := d.xdp.OlExpressFixed.Delete(s.abi()); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget where the sender %s is: %w", net.HardwareAddr(s.MAC[:]), err)
		}
		delete(d.express.fixed, s)
	}
	return d.pathsChanged()
}

// HoldExpress has flows leave their paths in order, and none take one, or lets them take them again.
func (d *Datapath) HoldExpress(on bool) error {
	if !setFlag(&d.policy.Flags, stagesOlFlagOL_F_EXPRESS_HELD, on) {
		return nil
	}
	return d.pathsChanged()
}

// CountUnread counts the datagrams for which UDP sockets have no room, or does not.
func (d *Datapath) CountUnread(on bool) (err error) {
	switch {
	case on && d.express.unread == nil:
		d.express.unread, err = d.attachTracing(heldTrace, d.trace.OlUnread)
	case !on && d.express.unread != nil:
		err = d.express.unread.Close()
		d.express.unread = nil
	}
	return err
}

// SetExpress allows frames to take the paths that are open, or does not.
func (d *Datapath) SetExpress(on bool) error {
	if on {
		if err := d.watchRedirects(); err != nil {
			return err
		}
		if err := d.attachOnce(&d.express.traced, d.trace.OlExpressSent); err != nil {
			return err
		}
	}
	if !setFlag(&d.policy.Flags, stagesOlFlagOL_F_EXPRESS, on) {
		return nil
	}
	// No program has seen which paths flows have taken while it was off.
	d.policy.ExpressEpoch++
	return d.pathsChanged()
}

// openPort returns the number of a pod's port, and makes it one if it is none yet.
func (d *Datapath) openPort(w ExpressPath) (uint32, error) {
	if port, ok := d.express.ports[w.Pod]; ok {
		return port, nil
	}
	used := slices.Collect(maps.Values(d.express.ports))
	if len(used) == MaxPorts {
		return 0, fmt.Errorf("%w: more than %d", ErrTooManyPods, MaxPorts)
	}
	// In turn: a flow slot may name a port that was another pod's before.
	port := d.express.next
	for slices.Contains(used, port) {
		port = (port + 1) % uint32(MaxPorts)
	}
	d.express.next = (port + 1) % uint32(MaxPorts)
	if err := d.stages.OlPorts.Put(port, stagesOlPort{}); err != nil {
		return 0, fmt.Errorf("clear the port: %w", err)
	}
	// Its polls must be watched before frames come there.
	if err := d.stages.OlCells.Put(w.Pod.key(), uint32(stagesOlLimitOL_MAX_TUNNELS)+1+port); err != nil {
		return 0, fmt.Errorf("watch the pod's end: %w", err)
	}
	// The kernel looks for the device in the namespace of the caller.
	err := w.Host.Netns.Visit(func() error { return d.xdp.OlExpressPorts.Put(port, uint32(w.Host.Ifindex)) })
	if err != nil {
		return 0, errors.Join(fmt.Errorf("open the port: %w", err), d.stages.OlCells.Delete(w.Pod.key()))
	}
	d.express.ports[w.Pod] = port
	return port, nil
}

func (d *Datapath) closePort(port uint32) error {
	var errs []error
	for pod, p := range d.express.ports {
		if p != port {
			continue
		}
		// It goes by itself with its device.
		if err := d.xdp.OlExpressPorts.Delete(port); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("close the port of a pod: %w", err))
		}
		if err := d.stages.OlCells.Delete(pod.key()); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("watch the pod's end no more: %w", err))
		}
		delete(d.express.ports, pod)
	}
	return errors.Join(errs...)
}

// unfitNames are the words for enum ol_express_unfit, in status and metrics.
var unfitNames = map[underlayOlExpressUnfit]string{
	underlayOlExpressUnfitOL_UNFIT_NIC:       "nic-address",
	underlayOlExpressUnfitOL_UNFIT_OUTER:     "outer-headers",
	underlayOlExpressUnfitOL_UNFIT_UNCHECKED: "outer-checksum",
	underlayOlExpressUnfitOL_UNFIT_FRAME:     "inner-frame",
	underlayOlExpressUnfitOL_UNFIT_INNER:     "inner-headers",
	underlayOlExpressUnfitOL_UNFIT_LONG:      "too-long",
	underlayOlExpressUnfitOL_UNFIT_SENDER:    "other-host",
}

// ExpressUnfit are the frames for which there was a path, and which took the full path, by reason.
func (d *Datapath) ExpressUnfit() (map[string]uint64, error) {
	if d.xdp.OlExpressUnfits == nil {
		return map[string]uint64{}, nil
	}
	return sums(d.xdp.OlExpressUnfits, unfitNames)
}

// ExpressDrops are the frames that went straight to a pod and found no room there: of Counters, what
// is read all the time.
func (d *Datapath) ExpressDrops() (uint64, error) {
	return sum(d.stages.OlCounters, uint32(stagesOlCounterOL_CNT_EXPRESS_DROP))
}

func (c CellDevice) key() stagesOlCellKey {
	return stagesOlCellKey{Ifindex: uint32(c.Ifindex), Netns: uint32(c.NetnsIno)}
}

func (s Sender) abi() underlayOlSenderKey {
	return underlayOlSenderKey{Vni: s.VNI, Port: s.Port, Mac: s.MAC}
}

func (k ExpressKey) abi() underlayOlExpressKey {
	return underlayOlExpressKey{Nic: uint32(k.NIC), Vni: k.VNI, Port: k.Port, Mac: k.MAC}
}
