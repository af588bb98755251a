// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"os"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
)

// netnsCache finds namespaces for one call: those that the scanner knows, and
// others by searching the machine. It must be closed with that call: a handle
// keeps the namespace of a dead container alive, and its veth.
type netnsCache struct {
	*apply.Finder
	scanner *node.Scanner
	open    map[uint64]*netns.Handle
}

func newNetnsCache(s *node.Scanner) *netnsCache {
	return &netnsCache{Finder: apply.NewFinder(), scanner: s, open: map[uint64]*netns.Handle{}}
}

// ByCookie implements apply.Namespaces.
func (s *netnsCache) ByCookie(cookie uint64) (*netns.Handle, error) {
	if h := s.open[cookie]; h != nil {
		return h, nil
	}
	h, err := s.scanner.Namespace(cookie)
	if err != nil {
		return s.Finder.ByCookie(cookie)
	}
	s.open[cookie] = h
	return h, nil
}

// Sysfs is what the scanner has open of a namespace that it knows.
func (s *netnsCache) Sysfs(cookie uint64) (*os.Root, error) { return s.scanner.Sysfs(cookie) }

// Close lets go of all namespaces.
func (s *netnsCache) Close() error {
	errs := []error{s.Finder.Close()}
	for _, h := range s.open {
		errs = append(errs, h.Close())
	}
	return errors.Join(errs...)
}
