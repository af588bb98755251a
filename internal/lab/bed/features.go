// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"bytes"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/overlane/overlane/internal/netns"
	"golang.org/x/sys/unix"
)

// From include/uapi/linux/ethtool.h.
const (
	ethGStrings   = 0x1b
	ethGSsetInfo  = 0x37
	ethGFeatures  = 0x3a
	ethSFeatures  = 0x3b
	ethSSFeatures = 4
	ethNameLen    = 32
	maxFeatures   = 128
)

type ethCount struct {
	cmd, _ uint32
	mask   uint64
	n      uint32
}

type ethStrings struct {
	cmd, set, n uint32
	names       [maxFeatures][ethNameLen]byte
}

type ethGet struct {
	cmd, size uint32
	blocks    [maxFeatures / 32]struct{ available, requested, active, never uint32 }
}

type ethSet struct {
	cmd, size uint32
	blocks    [maxFeatures / 32]struct{ valid, requested uint32 }
}

// ethtool asks the kernel about a device of the calling thread's namespace.
// The request must be on the heap: its address goes through an integer.
func ethtool(dev string, request unsafe.Pointer) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ifr := &struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [24 - unsafe.Sizeof(uintptr(0))]byte
	}{data: request}
	copy(ifr.name[:unix.IFNAMSIZ-1], dev)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(ifr)))
	runtime.KeepAlive(ifr)
	if errno != 0 {
		return errno
	}
	return nil
}

// featureNames returns the bits by name, and how many 32-bit blocks they fill:
// some bits have no name.
func featureNames(dev string) (names map[string]int, blocks uint32, err error) {
	// Newer kernels list nothing when asked for another number than they have.
	c := &ethCount{cmd: ethGSsetInfo, mask: 1 << ethSSFeatures}
	if err := ethtool(dev, unsafe.Pointer(c)); err != nil {
		return nil, 0, fmt.Errorf("count features of %s: %w", dev, err)
	}
	if c.n == 0 || c.n > maxFeatures {
		return nil, 0, fmt.Errorf("count features of %s: %d", dev, c.n)
	}
	g := &ethStrings{cmd: ethGStrings, set: ethSSFeatures, n: c.n}
	if err := ethtool(dev, unsafe.Pointer(g)); err != nil {
		return nil, 0, fmt.Errorf("list features of %s: %w", dev, err)
	}
	names = map[string]int{}
	for i := range min(int(g.n), maxFeatures) {
		name, _, _ := bytes.Cut(g.names[i][:], []byte{0})
		names[string(name)] = i
	}
	return names, (g.n + 31) / 32, nil
}

// Features changes offloads of a device, by their ethtool(8) names. Names that
// the kernel does not have are left out: they differ between versions. What
// the device then does not do as asked is an error.
func Features(ns *netns.Handle, dev string, want map[string]bool) error {
	return ns.Do(func() error {
		names, blocks, err := featureNames(dev)
		if err != nil {
			return err
		}
		set := &ethSet{cmd: ethSFeatures, size: blocks}
		for name, on := range want {
			i, ok := names[name]
			if !ok {
				continue
			}
			set.blocks[i/32].valid |= 1 << (i % 32)
			if on {
				set.blocks[i/32].requested |= 1 << (i % 32)
			}
		}
		if err := ethtool(dev, unsafe.Pointer(set)); err != nil {
			return fmt.Errorf("change features of %s: %w", dev, err)
		}
		get := &ethGet{cmd: ethGFeatures, size: blocks}
		if err := ethtool(dev, unsafe.Pointer(get)); err != nil {
			return fmt.Errorf("read features of %s: %w", dev, err)
		}
		for name, on := range want {
			if i, ok := names[name]; ok && get.blocks[i/32].active>>(i%32)&1 == 1 != on {
				return fmt.Errorf("feature %s of %s does not change to %t", name, dev, on)
			}
		}
		return nil
	})
}
