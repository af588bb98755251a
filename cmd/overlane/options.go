// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism/pipeline"
	"github.com/overlane/overlane/internal/mechanism/priority"
	"github.com/overlane/overlane/internal/probe"
)

// daemonOptions turns a configuration that was held against this node into what
// the daemon needs, or says what of it the kernel cannot do. It changes nothing.
func daemonOptions(cfg *config.Config) (daemon.Options, error) {
	scanner, l, err := scanNode(context.Background(), cfg.Underlays)
	if err != nil {
		return daemon.Options{}, err
	}
	if err := scanner.Close(); err != nil {
		return daemon.Options{}, err
	}
	return optionsOn(cfg, l)
}

// optionsOn are a configuration's options on a node that was scanned: only the NICs know whether they run XDP.
func optionsOn(cfg *config.Config, l nodeState) (daemon.Options, error) {
	opts := daemon.Options{
		StateDir:  global.stateDir,
		Online:    func() ([]int, error) { return onlineCores() },
		Apart:     func() ([]int, error) { return exclusiveCores(os.DirFS("/")) },
		Underlays: cfg.Underlays,
		Pipeline: pipeline.Options{
			Mode:     modeOf(cfg.Pipeline),
			Tier:     tierOf(cfg.Tier),
			Limits:   governor.DefaultLimits(),
			Topology: topology(),
			Microflows: pipeline.Microflows{
				Mode:      modeOf(cfg.Microflows.Mode),
				Batch:     cfg.Microflows.Batch,
				Cores:     cfg.Microflows.Cores,
				Elephant:  float64(cfg.Microflows.Elephant) / 8,
				Unordered: cfg.Microflows.UDPOrder == config.OrderNone,
				Hold:      cfg.Microflows.Hold,
			},
		},
		Priority: priority.Options{
			Rules:     cfg.Priority.Rules,
			Off:       cfg.Priority.Mode == config.PriorityOff,
			Sync:      cfg.Priority.Mode == config.PrioritySync,
			Auto:      cfg.Priority.Classify == config.ClassifyAuto,
			OnDemand:  cfg.Priority.Classify == config.ClassifyProven,
			NoThreads: cfg.Priority.Threads == config.ThreadsOff,
			Fair:      cfg.Priority.Threads == config.ThreadsFair,
			BulkShare: float64(cfg.Priority.BulkShare) / 100,
		},
		Aggregate:       modeOf(cfg.Aggregate),
		Express:         modeOf(cfg.Express),
		SkipUnusedHooks: cfg.BridgeNetfilter == config.HooksUnused,
		Version:         cli.Version(version),
		GuardianVerb:    []string{guardianVerb},
	}
	opts.Pipeline.Limits.Busy = float64(cfg.Limits.BusyCores) / 100
	cores, err := coresOf(cfg)
	if err != nil {
		return opts, err
	}
	opts.Cores = slices.Sorted(slices.Values(cores))
	opts.Tiers = tierStatus(l.tiers)
	opts.Priority.No, opts.Priority.NoGuard = l.noPriority(), tierError(l.tiers, 1)
	opts.Pipeline.Microflows.NoXDP = noXDP(cfg, l)
	opts.Pipeline.Microflows.NoMerge = noMerge(l.features)
	return opts, requireTier(cfg, l.tiers)
}

// tierOf is which facilities the pipeline may use: tier xdp only where the configuration says so.
func tierOf(t config.Tier) governor.Tier {
	if t == config.TierXDP {
		return governor.XDP
	}
	return governor.TC
}

// noXDP says why flows are not cut by XDP, nil where they are.
func noXDP(cfg *config.Config, l nodeState) error {
	if cfg.Tier == config.TierTC {
		return errors.New("tier: tc")
	}
	return tierError(l.tiers, 2)
}

// noMerge says why split flows cannot be put in order again on this node, nil where they can.
func noMerge(feats []probe.Feature) error {
	if f := feature(feats, probe.BPFQdisc); f.State != probe.Supported {
		return errors.New(f.Reason)
	}
	return nil
}

// feature is the answer to a question that is about no device.
func feature(feats []probe.Feature, id probe.ID) probe.Feature {
	for _, f := range feats {
		if f.ID == id {
			return f
		}
	}
	return probe.Feature{ID: id, Reason: fmt.Sprintf("overlane has not looked for %s", id)}
}

// prioritises tells whether a configuration asks for priority.
func prioritises(cfg *config.Config) bool {
	p := cfg.Priority
	return p.Mode != config.PriorityOff && (len(p.Rules) > 0 || p.Classify == config.ClassifyAuto)
}
