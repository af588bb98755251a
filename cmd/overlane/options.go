// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism/pipeline"
	"github.com/overlane/overlane/internal/mechanism/priority"
	"github.com/overlane/overlane/internal/probe"
)

// daemonOptions turns a configuration file into what the daemon needs, or says what
// of it this node cannot do. It changes nothing.
func daemonOptions(file string, log *slog.Logger) (opts daemon.Options, cfg *config.Config, err error) {
	if cfg, err = readConfig(file); err != nil {
		return opts, nil, err
	}
	// At boot a device may come after the service has started.
	if err := absentUnderlay(cfg); err != nil {
		log.Warn("an underlay is not there, and is waited for", "reason", err)
	}
	scanner, l, err := scanNode(context.Background(), cfg.Underlays)
	if err != nil {
		return opts, nil, err
	}
	if err := scanner.Close(); err != nil {
		return opts, nil, err
	}
	online, err := onlineCores()
	if err != nil {
		return opts, nil, err
	}
	if off := cfg.Cores.Minus(online); len(off) > 0 {
		log.Warn("some of the configured cores are offline, and are used once they are online", "cores", off)
	}
	opts, err = optionsOn(cfg, l)
	return opts, cfg, err
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
			Topology: topology,
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
	var err error
	if opts.Cores, err = coresOf(cfg); err != nil {
		return opts, err
	}
	if opts.Spared, err = sparedCores(cpus(), opts.Cores); err != nil {
		return opts, err
	}
	opts.Tiers = tierStatus(l.possible())
	opts.Priority.No, opts.Priority.NoGuard = l.noPriority(), tierError(l.tiers, 1)
	opts.Pipeline.Microflows.NoXDP = noXDP(cfg, l)
	opts.Pipeline.Microflows.NoMerge = noMerge(l.features)
	return opts, requireTier(cfg, l.possible())
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
	return tierError(l.possible(), 2)
}

// noMerge says why split flows cannot be put in order again on this node, nil where they can.
func noMerge(feats []probe.Feature) error {
	for _, f := range feats {
		if f.ID == probe.BPFQdisc && f.State != probe.Supported {
			return errors.New(f.Reason)
		}
	}
	return nil
}

// prioritises tells whether a configuration asks for priority.
func prioritises(cfg *config.Config) bool {
	p := cfg.Priority
	return p.Mode != config.PriorityOff && (len(p.Rules) > 0 || p.Classify == config.ClassifyAuto)
}
