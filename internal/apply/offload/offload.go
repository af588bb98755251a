// SPDX-License-Identifier: Apache-2.0

// Package offload reads and requests single features of network devices, and
// spells their state so that a request can be told from what came of it.
package offload

import (
	"fmt"

	"github.com/overlane/overlane/internal/ethtool"
)

// ErrUnknown means that the kernel has no feature of that name.
var ErrUnknown = ethtool.ErrUnknown

// Feature is the state of one feature of one device.
type Feature ethtool.Feature

// String spells the state as ethtool(8) does, without "[fixed]".
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
	all, err := ethtool.Features(device)
	if err != nil {
		return Feature{}, err
	}
	f, ok := all[feature]
	if !ok {
		return Feature{}, fmt.Errorf("get feature %s of %s: %w", feature, device, ErrUnknown)
	}
	return Feature(f), nil
}

// Set requests a feature. Whether the device then does it, Get tells.
func Set(device, feature string, on bool) error {
	return ethtool.SetFeature(device, feature, on)
}
