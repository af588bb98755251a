// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"sync/atomic"

	"github.com/overlane/overlane/internal/netns"
)

// Spinners are an application that needs all it can get of some cores, and no packets.
type Spinners struct {
	threads []*thread
	stop    atomic.Bool
}

// Spin keeps cores busy until it is stopped.
func Spin(ns *netns.Handle, cores []int) (*Spinners, error) {
	s := &Spinners{}
	for _, core := range cores {
		t, err := startThread(ns, core, normal, func() error {
			for !s.stop.Load() {
			}
			return nil
		})
		if err != nil {
			return nil, errors.Join(err, s.Stop())
		}
		s.threads = append(s.threads, t)
	}
	return s, nil
}

// Stop lets the cores be.
func (s *Spinners) Stop() error {
	s.stop.Store(true)
	return forAll(s.threads, (*thread).wait)
}
