// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"github.com/spf13/cobra"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/names"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/printable"
	"github.com/overlane/overlane/internal/xdp"
)

// outlook is what plan prints: each mechanism's, the pipeline's first.
type outlook struct {
	all   []mechanism.Outlook
	names names.Names
}

// parts are the outlook as JSON: the pipeline's at the top, each other under its name.
func (o outlook) parts() map[string]any {
	p := o.all[0]
	parts := map[string]any{
		"schema": control.Schema, "namespaces": o.names.Places(), "placement": p.Placement, "when": p.When,
		"steps": p.Steps, "attach": p.Attach, "skipped": p.Skipped,
	}
	for _, m := range o.all[1:] {
		parts[strings.ReplaceAll(m.Name, "-", "_")] = m
	}
	return parts
}

func newPlanCmd() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "What run would change on this node, with the way back",
		Long: `Shows what "overlane run" would change once it acts. Nothing is changed by plan.

Each step has the setting, its value now and the new one, the reason, and what
takes it back. Then come the programs that would be attached, and the devices
that are left as they are, with the reason. Not listed are the program on a device
that a step makes, and one that counts the flows of tunnels for some seconds.

Priority rules of the configuration act at once, without waiting for load; they
have a part of their own.

Without a running daemon nothing has been measured yet. The cores are then chosen
by typical costs, and by which core has received most since boot. The daemon
decides by what it measures.`,
		Example: `  overlane plan
  overlane plan --config /etc/overlane/config.yaml
  overlane plan --json | jq .steps,.priority.steps`,
		Args: cobra.NoArgs,
		Annotations: cli.Exits(map[int]string{
			cli.ExitOK: "the plan is printed, also when there is nothing to change",
		}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot("plan"); err != nil {
				return err
			}
			if err := needCapabilities(); err != nil {
				return err
			}
			cfg, err := loadConfig(file)
			if err != nil {
				return err
			}
			out, err := makePlan(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if global.json {
				return cli.JSON(cmd.OutOrStdout(), out.parts())
			}
			return out.show(cmd.OutOrStdout(), file)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `FILE`; without, the defaults")
	return cmd
}

// show prints the plan, by a configuration file or by the defaults (no name).
func (o outlook) show(w io.Writer, file string) error {
	s := newScreen(w)
	by := "by the defaults; with --config FILE, by a configuration"
	if file != "" {
		by = "by " + file
	}
	s.line(cell{by, dim})
	for _, m := range o.all {
		s.line()
		s.line(cell{m.When, bold})
		if m.Empty() && len(m.Skipped) == 0 {
			continue
		}
		if m.Placement != nil {
			s.line(cell{"placement by " + m.Placement.Reason, dim})
		}
		// Containers have names in the place of numbers.
		if _, err := io.WriteString(w, printable.Lines(o.names.Text(m.Text()))); err != nil {
			return err
		}
	}
	return nil
}

func makePlan(ctx context.Context, cfg *config.Config) (outlook, error) {
	var out outlook
	s, l, err := scanNode(ctx, cfg.Underlays)
	if err != nil {
		return out, err
	}
	defer s.Close()
	opts, err := optionsOn(cfg, l)
	if err != nil {
		return out, err
	}
	v, err := l.view(s)
	if err != nil {
		return out, err
	}
	online, err := onlineCores()
	if err != nil {
		return out, err
	}
	v.Cores, v.Topology, v.Placed = online.Minus(online.Minus(opts.Cores)), topology(), placed(ctx)
	if v.Receives, err = busiestReceiver(); err != nil {
		return out, err
	}
	if out.all, err = daemon.Foresee(v, opts); err != nil {
		return out, err
	}
	if cfg.Pipeline == config.ModeOff && len(out.all) == 1 {
		out.all[0].When = "run would only watch: " + out.all[0].When
	}
	out.names = names.New(s, l.snap)
	return out, nil
}

// view is the node as mechanisms see it, but for what only their placements need.
func (l nodeState) view(s *node.Scanner) (*mechanism.View, error) {
	changed, err := inFolder((*apply.Dir).Entries)
	if err != nil {
		return nil, err
	}
	return &mechanism.View{Scanner: s, Snapshot: l.snap, Features: l.features, Places: l.places, Changed: changed, Owns: l.owns}, nil
}

// placed asks the running daemon where the pipeline's stages go on; nil: none runs, or nowhere.
func placed(ctx context.Context) *governor.Layout {
	c, err := dialDaemon()
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	st, err := c.Status(ctx)
	if err != nil {
		return nil
	}
	return layoutOf(st)
}

// layoutOf is where the pipeline's stages go on by a status; nil: nowhere. Lanes may be micro-flows' as well: whichever
// has them in place says what it gains, also while its flows are called back.
func layoutOf(st control.Status) *governor.Layout {
	if !slices.ContainsFunc(st.Mechanisms, func(m control.Mechanism) bool { return m.Name == string(plan.ByPipeline) && m.Gain > 0 }) {
		return nil
	}
	return &governor.Layout{NIC: stageCores(st, plan.NIC), Tunnel: stageCores(st, plan.Tunnel), Pod: stageCores(st, plan.Pod), Reason: "the running daemon"}
}

func stageCores(st control.Status, stage plan.Stage) (cores []int) {
	for _, l := range st.Lanes {
		if l.Stage == string(stage) {
			cores = append(cores, l.Core)
		}
	}
	slices.Sort(cores)
	return slices.Compact(cores)
}

// busiestReceiver is the core that has handled most receive softirqs: the best
// guess at which one polls the NIC without a measurement.
func busiestReceiver() (int, error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, fmt.Errorf("find the core that receives: %w", err)
	}
	softirqs, err := proc.Softirqs()
	if err != nil {
		return 0, fmt.Errorf("find the core that receives: %w", err)
	}
	if len(softirqs.NetRx) == 0 {
		return 0, errors.New("find the core that receives: /proc/softirqs has no NET_RX")
	}
	// The kernel lists all possible cores in order, which x86 numbers without a gap.
	return slices.Index(softirqs.NetRx, slices.Max(softirqs.NetRx)), nil
}

// placesKnown tells what XDP programs cost here, and where they were refused, as far as a daemon has
// found out. No program comes to a NIC by it.
func placesKnown() (*xdp.Places, error) {
	known, err := inFolder(func(dir *apply.Dir) (*xdp.Memory, error) { return xdp.Remember(dir) })
	if known == nil && err == nil {
		known, err = xdp.Remember(nil)
	}
	return xdp.New(nil, known, nil), err
}

// inFolder returns what fn finds, without the lock, in this namespace's folder, if it has one.
func inFolder[T any](fn func(*apply.Dir) (T, error)) (found T, err error) {
	cookie, err := netns.CookieHere()
	if err != nil {
		return found, err
	}
	// Reading must not create the folder.
	_, err = os.Stat(filepath.Join(global.stateDir, strconv.FormatUint(cookie, 10)))
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	dir, err := apply.Open(global.stateDir, cookie)
	if err != nil {
		return found, err
	}
	found, err = fn(dir)
	return found, errors.Join(err, dir.Close())
}
