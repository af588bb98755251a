// SPDX-License-Identifier: Apache-2.0

package mechanism

import (
	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
)

// Reader reads how devices receive: a scanner as it is now, readings as it was a while ago.
type Reader interface {
	Settings(node.Dev) (node.Settings, error)
	Features(node.Dev) (map[string]ethtool.Feature, error)
	Namespace(cookie uint64) (*netns.Handle, error)
}

// Offloads reads the values of features; one that the kernel does not know has none.
func Offloads(s Reader, dev node.Dev, into map[string]*string) error {
	all, err := s.Features(dev)
	if err != nil {
		return err
	}
	for name, value := range into {
		if f, known := all[name]; known {
			*value = apply.FeatureValue(f)
		}
	}
	return nil
}
