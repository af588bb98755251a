// SPDX-License-Identifier: Apache-2.0

// Package offload reads and sets the features of network devices by
// ethtool's ioctl. Buffers that the kernel writes to are on the heap and held
// by real pointers: an address kept in a uintptr is stale as soon as the
// goroutine's stack moves.
package offload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/ethtool.h: the string set of features, the size of one string.
const (
	setFeatures = 4
	nameLen     = 32
)

// ErrUnknown means that the kernel has no feature of that name.
var ErrUnknown = errors.New("unknown feature")

// Feature is the state of one feature of one device.
type Feature struct {
	// Active is what is done, Requested what was asked for. They differ
	// where another feature or the driver stands against it.
	Active, Requested bool
	// Fixed features cannot be changed; nothing is ever requested of them.
	Fixed bool
}

// String spells the state as ethtool does, without "[fixed]".
func (f Feature) String() string {
	if !f.Fixed && f.Active != f.Requested {
		return onOff(f.Active) + " [requested " + onOff(f.Requested) + "]"
	}
	return onOff(f.Active)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// Get returns the state of a feature, by its kernel name ("rx-gro"), of a
// device in the calling thread's network namespace.
func Get(device, feature string) (Feature, error) {
	all, err := List(device)
	if err != nil {
		return Feature{}, err
	}
	f, ok := all[feature]
	if !ok {
		return Feature{}, fmt.Errorf("get feature %s of %s: %w", feature, device, ErrUnknown)
	}
	return f, nil
}

// List returns the state of every feature of a device.
func List(device string) (map[string]Feature, error) {
	d, err := open(device)
	if err != nil {
		return nil, err
	}
	defer d.close()
	names, err := d.names()
	if err != nil {
		return nil, fmt.Errorf("list features of %s: %w", device, err)
	}
	blocks := (len(names) + 31) / 32
	const perBlock = 4 // available, requested, active, never changed
	buf := words(unix.ETHTOOL_GFEATURES, uint32(blocks), make([]uint32, blocks*perBlock))
	if _, err := d.ioctl(buf); err != nil {
		return nil, fmt.Errorf("get features of %s: %w", device, err)
	}
	features := make(map[string]Feature, len(names))
	for i, name := range names {
		bit := func(field int) bool {
			w := buf[8+4*(i/32*perBlock+field):]
			return binary.NativeEndian.Uint32(w)>>(i%32)&1 == 1
		}
		if name != "" {
			features[name] = Feature{Active: bit(2), Requested: bit(1), Fixed: !bit(0) || bit(3)}
		}
	}
	return features, nil
}

// Set requests a feature. Whether the device then does it, Get tells.
func Set(device, feature string, on bool) error {
	d, err := open(device)
	if err != nil {
		return err
	}
	defer d.close()
	names, err := d.names()
	if err != nil {
		return fmt.Errorf("list features of %s: %w", device, err)
	}
	for i, name := range names {
		if name != feature || name == "" {
			continue
		}
		blocks := (len(names) + 31) / 32
		bits := make([]uint32, blocks*2) // valid, requested
		bits[i/32*2] = 1 << (i % 32)
		if on {
			bits[i/32*2+1] = 1 << (i % 32)
		}
		flags, err := d.ioctl(words(unix.ETHTOOL_SFEATURES, uint32(blocks), bits))
		if err == nil && flags&unix.ETHTOOL_F_UNSUPPORTED != 0 {
			err = errors.New("the driver has it fixed")
		}
		if err != nil {
			return fmt.Errorf("set feature %s of %s to %s: %w", feature, device, onOff(on), err)
		}
		return nil
	}
	return fmt.Errorf("set feature %s of %s: %w", feature, device, ErrUnknown)
}

// handle is a socket to ask about one device.
type handle struct {
	fd   int
	name [unix.IFNAMSIZ]byte
}

func open(device string) (*handle, error) {
	d := new(handle)
	if len(device) >= len(d.name) {
		return nil, fmt.Errorf("device %s: %w", device, unix.ENODEV)
	}
	copy(d.name[:], device)
	var err error
	if d.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC); err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	return d, nil
}

func (d *handle) close() { unix.Close(d.fd) }

// ioctl passes buf, whose first word is the command, and returns the result.
func (d *handle) ioctl(buf []byte) (uintptr, error) {
	// struct ifreq is 40 bytes: a name and a union, here of a pointer.
	ifr := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{name: d.name, data: unsafe.Pointer(unsafe.SliceData(buf))}
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr)))
	runtime.KeepAlive(buf)
	if errno != 0 {
		return 0, errno
	}
	return r, nil
}

// names returns the kernel's feature names in the order of their bits.
func (d *handle) names() ([]string, error) {
	// The mask of sets is 64 bits wide, as two words; one count comes back.
	const count = 4 * 4
	info := words(unix.ETHTOOL_GSSET_INFO, 0, make([]uint32, 3))
	binary.NativeEndian.PutUint64(info[8:], 1<<setFeatures)
	if _, err := d.ioctl(info); err != nil {
		return nil, err
	}
	n := int(binary.NativeEndian.Uint32(info[count:]))
	const header = 3 * 4
	buf := words(unix.ETHTOOL_GSTRINGS, setFeatures, make([]uint32, 1+n*nameLen/4))
	binary.NativeEndian.PutUint32(buf[8:], uint32(n))
	if _, err := d.ioctl(buf); err != nil {
		return nil, err
	}
	names := make([]string, n)
	for i := range names {
		field := buf[header+i*nameLen:][:nameLen]
		name, _, _ := bytes.Cut(field, []byte{0})
		names[i] = string(name)
	}
	return names, nil
}

// words lays out a command, its argument and what follows, in the
// machine's byte order.
func words(cmd, arg uint32, rest []uint32) []byte {
	buf := make([]byte, 0, 8+4*len(rest))
	for _, w := range append([]uint32{cmd, arg}, rest...) {
		buf = binary.NativeEndian.AppendUint32(buf, w)
	}
	return buf
}
