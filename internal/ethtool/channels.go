// SPDX-License-Identifier: Apache-2.0

package ethtool

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Channels says how many channels of a kind are in use, and how many can be.
// A channel serves an interrupt: Rx ones have a receive queue, Combined ones
// a receive and a transmit queue.
type Channels struct {
	Rx, MaxRx             int
	Combined, MaxCombined int
}

// ReadChannels returns the channels of a device. Not every driver has them:
// the error is then unix.EOPNOTSUPP.
func ReadChannels(device string) (Channels, error) {
	c, err := open(device)
	if err != nil {
		return Channels{}, err
	}
	defer c.close()
	// The most and then those in use of receive, transmit, other, combined.
	buf := words(unix.ETHTOOL_GCHANNELS, 0, make([]uint32, 7))
	if _, err := c.ioctl(buf); err != nil {
		return Channels{}, fmt.Errorf("get channels of %s: %w", device, err)
	}
	n := func(i int) int { return int(word(buf, i)) }
	return Channels{MaxRx: n(1), MaxCombined: n(4), Rx: n(5), Combined: n(8)}, nil
}
