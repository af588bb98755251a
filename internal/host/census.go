// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/plan"
)

// census counts what flows bring out of the tunnels (mechanism.Census).
type census struct {
	dp    *datapath.Census
	hooks mechanism.Hooks
}

// BeginCensus begins one, or leaves no trace of it.
func (h *Host) BeginCensus() (mechanism.Census, error) {
	dp, err := h.dp.LoadCensus()
	if err != nil {
		return nil, err
	}
	c := &census{dp: dp, hooks: mechanism.Hooks{}}
	var on []plan.Attachment
	for _, t := range h.Snapshot().Tunnels {
		on = append(on, plan.Attachment{Target: plan.Target(t.Dev)})
	}
	if err := c.hooks.Follow(h, on, dp.Attach); err != nil {
		return nil, errors.Join(err, c.End())
	}
	return c, nil
}

// Flows are what each flow brought, and what the rest did that had no place.
func (c *census) Flows() (flows []datapath.FlowBrought, rest datapath.FlowBrought, err error) {
	return c.dp.Flows()
}

// End leaves no trace of it.
func (c *census) End() error {
	return errors.Join(c.hooks.Close(), c.dp.Close())
}
