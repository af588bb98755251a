// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/probe"
)

// daemonOptions turns a configuration that was held against this node into what
// the daemon needs, or says what of it the kernel cannot do. It changes nothing.
func daemonOptions(cfg *config.Config) (daemon.Options, error) {
	opts := daemon.Options{
		StateDir:     global.stateDir,
		Underlays:    cfg.Underlays,
		Mode:         modeOf(cfg.Pipeline),
		Tier:         governor.TC,
		Limits:       governor.DefaultLimits(),
		Version:      buildVersion(),
		GuardianVerb: []string{guardianVerb},
	}
	opts.Limits.Busy = float64(cfg.Limits.BusyCores) / 100
	cores, err := coresOf(cfg)
	if err != nil {
		return opts, err
	}
	opts.Cores = slices.Sorted(slices.Values(cores))

	feats := probe.New().All()
	tiers := probe.Tiers(feats)
	for _, t := range tiers {
		opts.Tiers = append(opts.Tiers, control.TierStatus{Name: t.Name, Reached: t.Reached, Reason: t.Reason, Remedy: t.Remedy})
	}
	need := tiers[1]
	if cfg.Tier == config.TierXDP {
		need, opts.Tier = tiers[2], governor.XDP
	}
	if !need.Reached && cfg.Pipeline != config.ModeOff {
		return opts, unsupportedError(fmt.Sprintf("tier %s: %s", need.Name, need.Reason), need.Remedy)
	}
	return opts, nil
}
