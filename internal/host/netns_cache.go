// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"os"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
)

// scanned finds the namespaces that the scanner knows, for one call. It must be
// closed with that call: a handle keeps the namespace of a dead container alive,
// and its veth.
type scanned struct {
	scanner *node.Scanner
	open    map[uint64]*netns.Handle
}

func newScanned(s *node.Scanner) *scanned {
	return &scanned{scanner: s, open: map[uint64]*netns.Handle{}}
}

// ByCookie implements apply.Namespaces.
func (s *scanned) ByCookie(cookie uint64) (*netns.Handle, error) {
	if h := s.open[cookie]; h != nil {
		return h, nil
	}
	h, err := s.scanner.Namespace(cookie)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", apply.ErrUnseen, err)
	}
	s.open[cookie] = h
	return h, nil
}

// Sysfs is what the scanner has open of a namespace that it knows.
func (s *scanned) Sysfs(cookie uint64) (*os.Root, error) { return s.scanner.Sysfs(cookie) }

// Close lets go of all namespaces.
func (s *scanned) Close() error {
	var errs []error
	for _, h := range s.open {
		errs = append(errs, h.Close())
	}
	return errors.Join(errs...)
}

// searched finds others as well, by searching the machine: what is restored may be of a namespace that no scan
// sees any more. That takes long.
type searched struct {
	*scanned
	*apply.Finder
}

func newSearched(s *node.Scanner) searched { return searched{newScanned(s), apply.NewFinder()} }

// ByCookie implements apply.Namespaces.
func (s searched) ByCookie(cookie uint64) (*netns.Handle, error) {
	if h, err := s.scanned.ByCookie(cookie); err == nil {
		return h, nil
	}
	return s.Finder.ByCookie(cookie)
}

// Close lets go of all namespaces.
func (s searched) Close() error { return errors.Join(s.scanned.Close(), s.Finder.Close()) }
