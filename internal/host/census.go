// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"io"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/node"
)

// census counts what flows bring out of the tunnels (datapath.FlowCounts).
type census struct {
	*datapath.Census
	hooks []io.Closer
}

// BeginCensus begins one on some tunnels, or leaves no trace of it.
func (h *Host) BeginCensus(tunnels []node.Tunnel) (datapath.FlowCounts, error) {
	dp, err := h.dp.LoadCensus()
	if err != nil {
		return nil, err
	}
	c := &census{Census: dp}
	for _, t := range tunnels {
		l, err := h.Attach(t.Dev, dp.Attach)
		switch {
		case err == nil:
			c.hooks = append(c.hooks, l)
		case !errors.Is(err, node.ErrGone):
			return nil, errors.Join(err, c.End())
		}
	}
	return c, nil
}

// End leaves no trace of it.
func (c *census) End() error {
	var errs []error
	for _, h := range c.hooks {
		errs = append(errs, h.Close())
	}
	return errors.Join(append(errs, c.Close())...)
}
