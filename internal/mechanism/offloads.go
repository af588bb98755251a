// SPDX-License-Identifier: Apache-2.0

package mechanism

import (
	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/node"
)

// Offloads reads the values of features; one that the kernel does not know has none.
func Offloads(s node.Reader, dev node.Dev, into map[string]*string) error {
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
