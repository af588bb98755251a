// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"errors"
	"fmt"
	"net"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/internal/netns"
)

// countArrivals lets generators with a window see what reached its goal.
func (e *env) countArrivals(c *traffic.Checker) error {
	rx := e.bed.Receiver()
	if !e.overlay {
		return count(c, rx.NS, rx.Wire)
	}
	var errs []error
	for i := range rx.Pods {
		errs = append(errs, count(c, rx.Pods[i].NS, bed.PodDev))
	}
	return errors.Join(errs...)
}

func count(c *traffic.Checker, ns *netns.Handle, dev string) error {
	var ifi *net.Interface
	if err := ns.Do(func() (err error) {
		ifi, err = net.InterfaceByName(dev)
		return err
	}); err != nil {
		return fmt.Errorf("count arrivals: %w", err)
	}
	return c.CountArrivals(ns, ifi.Index)
}
