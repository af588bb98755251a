// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/privilege"
	"github.com/overlane/overlane/internal/probe"
	"github.com/overlane/overlane/internal/shell"
	"github.com/overlane/overlane/internal/xdp"
)

// loadConfig reads the configuration and holds it against this node. An empty
// path means the defaults.
func loadConfig(path string) (*config.Config, error) {
	cfg, err := readConfig(path)
	if err != nil {
		return nil, err
	}
	return cfg, absentUnderlay(cfg)
}

// readConfig is loadConfig without devices, which may come later.
func readConfig(path string) (*config.Config, error) {
	cfg := config.Default()
	if path != "" {
		var err error
		if cfg, err = config.Load(path); err != nil {
			return nil, err
		}
	}
	present, apart, err := presentAndApart(cpus())
	if err != nil {
		return nil, err
	}
	return cfg, cfg.Validate(present, apart)
}

// absentUnderlay says which underlay of the configuration is not there.
func absentUnderlay(cfg *config.Config) error {
	devs, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	names := make([]string, len(devs))
	for i := range devs {
		names[i] = devs[i].Name
	}
	for _, u := range cfg.Underlays {
		if !slices.Contains(names, u) {
			return cfg.Problem("underlays", fmt.Sprintf("there is no device %s in this network namespace", u), "there are: "+strings.Join(names, ", "))
		}
	}
	return nil
}

// coresOf returns the cores that flows may be steered to while they are online.
func coresOf(cfg *config.Config) (config.CPUList, error) {
	if len(cfg.Cores) > 0 {
		return cfg.Cores, nil
	}
	return housekeepingCores(cpus())
}

// nodeState is what there is on the node and what it can do.
type nodeState struct {
	snap     node.Snapshot
	features []probe.Feature
	tiers    []probe.Tier
	places   *xdp.Places
	lacking  []privilege.Need
	// owns tells of a BPF program that it is a running daemon's.
	owns func(progID uint32) bool
}

// scanNode scans the node. The scanner is the caller's to close.
func scanNode(ctx context.Context, underlays []string) (*node.Scanner, nodeState, error) {
	l := nodeState{owns: ownIfRunning()}
	s, err := node.NewScanner(node.Options{Underlays: underlays, OwnXDP: l.owns})
	if err != nil {
		return nil, l, err
	}
	if l.snap, err = s.Scan(ctx); err != nil {
		return nil, l, errors.Join(fmt.Errorf("scan node: %w", err), s.Close())
	}
	prober := probe.New()
	l.features = prober.All()
	for _, u := range l.snap.Underlays {
		h, err := s.Namespace(u.NetnsCookie)
		if err != nil {
			continue // gone since the scan
		}
		l.features = append(l.features, prober.NIC(h, u.Name, u.Ifindex, u.MTU))
		h.Close()
	}
	l.tiers = probe.Tiers(l.features)
	if l.places, err = placesKnown(); err != nil {
		return nil, l, errors.Join(err, s.Close())
	}
	if l.lacking, err = lacking(); err != nil {
		return nil, l, errors.Join(err, s.Close())
	}
	l.tell()
	return s, l, nil
}

// stands adds to what drivers can do what stands against an XDP program on the NICs now.
func (l nodeState) stands() []probe.Feature {
	features := slices.Clone(l.features)
	for _, u := range l.snap.Underlays {
		why := l.places.Bars(u, xdp.Want{Asked: true})
		at := slices.IndexFunc(features, func(f probe.Feature) bool { return f.ID == probe.NativeXDP && f.Device == u.Name })
		if why != "" && at >= 0 {
			features[at].State, features[at].Reason, features[at].Remedy = probe.Unsupported, why, shell.Line{}
		}
	}
	return features
}

// possible are the tiers with the underlays that may come: at boot no container of an overlay runs yet, and no NIC is
// known. Of one that comes the placement says whether it takes a program.
func (l nodeState) possible() []probe.Tier {
	if len(l.snap.Underlays) > 0 {
		return l.tiers
	}
	return probe.Tiers(append(slices.Clone(l.features), probe.Feature{ID: probe.NativeXDP, State: probe.Supported}))
}

// requireTier returns the error of a node that does not reach what the
// configuration needs.
func requireTier(cfg *config.Config, tiers []probe.Tier) error {
	need := map[config.Tier]int{config.TierAuto: 1, config.TierTC: 1, config.TierXDP: 2}[cfg.Tier]
	if cfg.Pipeline == config.ModeOff && !prioritises(cfg) {
		need = 0
	}
	return tierError(tiers, need)
}

// tierError says what a tier lacks here, nil if it is reached.
func tierError(tiers []probe.Tier, number int) error {
	for _, t := range tiers {
		if t.Number == number && !t.Reached {
			return cli.Unsupported(fmt.Sprintf("tier %d (%s) needs %s", t.Number, t.Name, t.Reason), t.Remedy)
		}
	}
	return nil
}

func tierStatus(tiers []probe.Tier) []control.TierStatus {
	out := make([]control.TierStatus, len(tiers))
	for i, t := range tiers {
		out[i] = control.TierStatus{
			Name: fmt.Sprintf("%d %s", t.Number, t.Name), Reached: t.Reached, Reason: t.Reason, Remedy: t.Remedy.String(),
		}
	}
	return out
}

// ownIfRunning reports whether a BPF program is overlane's; without a daemon that
// runs here none is. The kernel does not tell which process loaded a program; its
// name is the best there is.
func ownIfRunning() func(uint32) bool {
	c, err := dialDaemon()
	if err != nil {
		return func(uint32) bool { return false }
	}
	c.Close()
	return func(id uint32) bool { return strings.HasPrefix(foreign.ProgramName(id), "ol_") }
}
