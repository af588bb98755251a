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
	scanner *node.Scanner
	finder  *apply.Finder
	open    map[uint64]*netns.Handle
}

func newNetnsCache(s *node.Scanner) *netnsCache {
	return &netnsCache{scanner: s, finder: apply.NewFinder(), open: map[uint64]*netns.Handle{}}
}

// ByCookie implements apply.Namespaces.
func (s *netnsCache) ByCookie(cookie uint64) (*netns.Handle, error) {
	h, err := s.known(cookie)
	if err != nil {
		return s.finder.ByCookie(cookie)
	}
	return h, nil
}

// known finds one of those that the scanner knows.
func (s *netnsCache) known(cookie uint64) (*netns.Handle, error) {
	if h := s.open[cookie]; h != nil {
		return h, nil
	}
	h, err := s.scanner.Namespace(cookie)
	if err == nil {
		s.open[cookie] = h
	}
	return h, err
}

// Sysfs is what the scanner has open of a namespace that it knows.
func (s *netnsCache) Sysfs(cookie uint64) (*os.Root, error) { return s.scanner.Sysfs(cookie) }

// Hint tells the inode number that a namespace had when it was last seen.
func (s *netnsCache) Hint(cookie, inode uint64) { s.finder.Hint(cookie, inode) }

// Close lets go of all namespaces.
func (s *netnsCache) Close() error {
	errs := []error{s.finder.Close()}
	for _, h := range s.open {
		errs = append(errs, h.Close())
	}
	return errors.Join(errs...)
}
