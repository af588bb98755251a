// SPDX-License-Identifier: Apache-2.0

package ethtool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// From linux/ethtool.h: the string set of features, the size of one string.
const (
	setFeatures = 4
	nameLen     = 32
)

// Features of receiving, by the kernel's names.
const (
	GRO           = "rx-gro"
	UDPForwarding = "rx-udp-gro-forwarding" // GRO joins datagrams that are only passed on
	USO           = "tx-udp-segmentation"   // it takes datagrams that are to be cut up
	GROList       = "rx-gro-list"           // GRO chains packets as they are
)

// TSO tells of the features of a device that it takes TCP segments to be cut up, of any kind (NETIF_F_ALL_TSO).
func TSO(features map[string]Feature) bool {
	for _, of := range []string{"", "6", "-ecn", "-mangleid"} {
		if features["tx-tcp"+of+"-segmentation"].Active {
			return true
		}
	}
	return false
}

// ErrUnknown means that the kernel has no feature of that name.
var ErrUnknown = errors.New("unknown feature")

// errFixed means that the driver does not let a feature be changed.
var errFixed = errors.New("the driver has it fixed")

// Feature is the state of one feature of one device.
type Feature struct {
	// Active is what is done, Requested what was asked for. They differ
	// where another feature or the driver stands against it.
	Active, Requested bool
	// Fixed features cannot be changed; nothing is ever requested of them.
	Fixed bool
}

// Features returns the state of every feature of a device, by the kernel's
// names, such as rx-gro, tx-checksum-ip-generic, rx-lro.
func Features(device string) (map[string]Feature, error) {
	c, err := open(device)
	if err != nil {
		return nil, err
	}
	defer c.close()
	names, err := c.featureNames()
	if err != nil {
		return nil, fmt.Errorf("list features of %s: %w", device, err)
	}
	blocks := (len(names) + 31) / 32
	const perBlock = 4 // available, requested, active, never changed
	buf := words(unix.ETHTOOL_GFEATURES, uint32(blocks), make([]uint32, blocks*perBlock))
	if _, err := c.ioctl(buf); err != nil {
		return nil, fmt.Errorf("get features of %s: %w", device, err)
	}
	features := make(map[string]Feature, len(names))
	for i, name := range names {
		bit := func(field int) bool { return word(buf, 2+i/32*perBlock+field)>>(i%32)&1 == 1 }
		if name != "" {
			features[name] = Feature{Active: bit(2), Requested: bit(1), Fixed: !bit(0) || bit(3)}
		}
	}
	return features, nil
}

// SetFeature requests a feature. Whether the device then does it, Features
// tells. The error is ErrUnknown if the kernel has none of that name.
func SetFeature(device, name string, on bool) error {
	c, err := open(device)
	if err != nil {
		return err
	}
	defer c.close()
	names, err := c.featureNames()
	if err != nil {
		return fmt.Errorf("list features of %s: %w", device, err)
	}
	for i, n := range names {
		if n != name || n == "" {
			continue
		}
		if err := c.request(i, (len(names)+31)/32, on); err != nil {
			return fmt.Errorf("set feature %s of %s to %t: %w", name, device, on, err)
		}
		return nil
	}
	return fmt.Errorf("set feature %s of %s: %w", name, device, ErrUnknown)
}

// request asks for one feature, the ith of those in so many blocks.
func (c *conn) request(i, blocks int, on bool) error {
	bits := make([]uint32, blocks*2) // valid, requested
	bits[i/32*2] = 1 << (i % 32)
	if on {
		bits[i/32*2+1] = 1 << (i % 32)
	}
	flags, err := c.ioctl(words(unix.ETHTOOL_SFEATURES, uint32(blocks), bits))
	if err == nil && flags&unix.ETHTOOL_F_UNSUPPORTED != 0 {
		err = errFixed
	}
	return err
}

// featureNames returns the kernel's names in the order of their bits. Some
// bits have none.
func (c *conn) featureNames() ([]string, error) {
	// The mask of sets is 64 bits wide, as two words; one count comes back.
	info := words(unix.ETHTOOL_GSSET_INFO, 0, make([]uint32, 3))
	binary.NativeEndian.PutUint64(info[8:], 1<<setFeatures)
	if _, err := c.ioctl(info); err != nil {
		return nil, err
	}
	n := int(word(info, 4))
	const header = 3 * 4
	buf := words(unix.ETHTOOL_GSTRINGS, setFeatures, make([]uint32, 1+n*nameLen/4))
	binary.NativeEndian.PutUint32(buf[8:], uint32(n))
	if _, err := c.ioctl(buf); err != nil {
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
