// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/neighbour"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/probe"
)

// diagnosis is what doctor prints.
type diagnosis struct {
	Tiers []probe.Tier `json:"tiers"`
	// Mechanisms are what there is beside the pipeline.
	Mechanisms []probe.Mechanism `json:"mechanisms"`
	Features   []probe.Feature   `json:"features"`
	Devices    []seen            `json:"devices"`
	Findings   []probe.Finding   `json:"findings"`
	Skipped    []leftOut         `json:"skipped"`
	// Neighbours are services of the machine that change what is gone by.
	Neighbours []neighbour.Service `json:"neighbours"`
}

// seen is a device that the overlay consists of.
type seen struct {
	Name  string `json:"name"`
	Role  string `json:"role"`
	Netns uint64 `json:"netns"`
	About string `json:"about"`
}

type leftOut struct {
	Device string `json:"device"`
	Reason string `json:"reason"`
}

func newDoctorCmd() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "What this node can get, and what slows its overlay down",
		Long: `Looks at the kernel, the NICs, the tunnels and the pods, and changes nothing. For
each tier that this node does not reach it names the one reason and the one
command that would change it. Findings are classic causes of a slow overlay,
each with the exact command that mends it; see to those first. Programs of others on
the devices, and services that move what overlane goes by, are named, with what
is left alone because of them and what remains.

Tiers: 0 settings (any kernel), 1 tc (pipeline at the tunnel and pod stages),
2 xdp (split of the first stage), 3 merge (micro-flows). A missing tier is no
error: the next lower one runs. Priority has a line of its own: it needs native
XDP on an underlay, and a NIC that threads can poll.

Without root only the kernel is looked at, as far as it lets others ask.`,
		Example: `  overlane doctor
  overlane doctor --json | jq -r '.findings[].fix'`,
		Args: cobra.NoArgs,
		Annotations: exits(map[int]string{
			exitOK:          "the pipeline can run here (tier 1 or above)",
			exitUnsupported: "the pipeline cannot run here; the reason is in the table",
			exitVerdict:     "",
		}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := diagnose(cmd, file)
			if d == nil {
				return err
			}
			if global.json {
				return errors.Join(printJSON(cmd.OutOrStdout(), d), err)
			}
			showDiagnosis(newScreen(cmd.OutOrStdout()), d)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `FILE` with the underlays to look at")
	return cmd
}

func diagnose(cmd *cobra.Command, file string) (*diagnosis, error) {
	cfg, err := loadConfig(file)
	if err != nil {
		return nil, err
	}
	d := &diagnosis{Devices: []seen{}, Findings: []probe.Finding{}, Skipped: []leftOut{}, Neighbours: []neighbour.Service{}}
	d.Neighbours = append(d.Neighbours, neighbour.Services(os.DirFS("/proc"))...)
	if os.Geteuid() != 0 {
		d.Features = probe.New().All()
		d.Tiers, d.Mechanisms = probe.Tiers(d.Features), probe.Mechanisms(d.Features)
		return d, errors.New("devices need root to be looked at: sudo overlane doctor")
	}
	if err := needCapabilities(); err != nil {
		d.Features = probe.New().All()
		d.Tiers, d.Mechanisms = probe.Tiers(d.Features), probe.Mechanisms(d.Features)
		return d, err
	}
	own := ownIfRunning()
	s, l, err := lookAround(cmd.Context(), cfg.Underlays, own)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	d.Tiers, d.Mechanisms, d.Features = l.tiers, l.mechanisms(), l.features
	d.devices(l.snap)
	found, err := probe.Diagnose(cmd.Context(), s, l.snap, own)
	d.Findings = append(d.Findings, found...)
	if err != nil {
		return d, err
	}
	if err := d.onlookers(s, l.snap, own); err != nil {
		return d, err
	}
	return d, requireTier(cfg, l.tiers)
}

// onlookers says why datagrams are not joined (aggregate: auto), once for each reason.
func (d *diagnosis) onlookers(s *node.Scanner, snap node.Snapshot, own func(uint32) bool) error {
	reasons, err := daemon.JoinedReasons(s, snap, own)
	if err != nil {
		return err
	}
	told := map[string]bool{}
	add := func(dev node.Dev) {
		why := reasons[dev.Key()]
		if why == "" || told[why] {
			return
		}
		told[why] = true
		what, see, _ := strings.Cut(strings.TrimPrefix(why, "left alone: "), "; see: ")
		d.Findings = append(d.Findings, probe.Finding{Level: probe.Note, Device: dev, What: "aggregate leaves it alone: " + what, Fix: see})
	}
	for _, u := range snap.Underlays {
		add(u.Dev)
	}
	for _, t := range snap.Tunnels {
		add(t.Dev)
	}
	return nil
}

func (d *diagnosis) devices(snap node.Snapshot) {
	for _, u := range snap.Underlays {
		d.Devices = append(d.Devices, seen{u.Name, "underlay", u.NetnsCookie,
			fmt.Sprintf("%s, MTU %d, %s", u.Driver, u.MTU, plural(u.RxQueues, "receive queue"))})
	}
	for _, t := range snap.Tunnels {
		about := fmt.Sprintf("%s, VNI %d, port %d, MTU %d", t.Kind, t.VNI, t.Port, t.MTU)
		if t.CollectMetadata {
			about = fmt.Sprintf("%s, any VNI, port %d, MTU %d", t.Kind, t.Port, t.MTU)
		}
		if t.Bridge != nil {
			about += ", port of bridge " + t.Bridge.Name
		}
		d.Devices = append(d.Devices, seen{t.Name, "tunnel", t.NetnsCookie, about})
	}
	for _, p := range snap.Pods {
		d.Devices = append(d.Devices, seen{p.Host.Name, "pod", p.Host.NetnsCookie,
			fmt.Sprintf("%s in network namespace %d, MTU %d", p.Peer.Name, p.Peer.NetnsCookie, p.PeerMTU)})
	}
	for _, s := range snap.Skipped {
		d.Skipped = append(d.Skipped, leftOut{s.Dev.Name, s.Reason})
	}
}

func showDiagnosis(s *screen, d *diagnosis) {
	s.table([]string{"TIER", "REACHED", "WHY"}, tierRows(tierStatus(d.Tiers)))
	s.line()
	s.table([]string{"MECHANISM", "POSSIBLE", "WHY"}, possibleRows(d.Mechanisms))
	var rows [][]cell
	for _, f := range d.Features {
		state := cell{f.State.String(), yellow}
		if f.State == probe.Supported {
			state.style = green
		}
		name := string(f.ID)
		if f.Device != "" {
			name += " of " + f.Device
		}
		rows = append(rows, []cell{{name, bold}, state, {f.Reason, plain}})
	}
	s.line()
	s.table([]string{"FEATURE", "", "WHY"}, rows)

	rows = nil
	for _, dev := range d.Devices {
		rows = append(rows, []cell{{dev.Name, bold}, {dev.Role, plain}, {dev.About, plain}})
	}
	for _, dev := range d.Skipped {
		rows = append(rows, []cell{{dev.Device, bold}, {"left out", yellow}, {dev.Reason, plain}})
	}
	if len(rows) > 0 {
		s.line()
		s.table([]string{"DEVICE", "ROLE", "WHAT"}, rows)
	} else if os.Geteuid() == 0 {
		s.line()
		s.line(cell{"no VXLAN or Geneve tunnel was found", plain})
	}
	if rows = neighbourRows(d.Neighbours); len(rows) > 0 {
		s.line()
		s.table([]string{"BESIDE US", ">PID", "WHAT THAT MEANS"}, rows)
	}
	if len(d.Findings) > 0 {
		s.line()
		s.line(cell{"FINDINGS", dim})
	}
	for _, f := range d.Findings {
		color := map[probe.Level]style{probe.Broken: red, probe.Slow: yellow}[f.Level]
		s.table(nil, [][]cell{
			{{fmt.Sprintf("%-6s", f.Level), color}, {f.Device.Name, bold}, {f.What, plain}},
			{{}, {}, {f.Fix, command}},
		})
	}
}

func neighbourRows(list []neighbour.Service) (rows [][]cell) {
	for _, n := range list {
		rows = append(rows, []cell{{n.Name, bold}, {n.PID, plain}, {n.Means, plain}})
	}
	return rows
}

func possibleRows(list []probe.Mechanism) (rows [][]cell) {
	for _, m := range list {
		possible := cell{"yes", green}
		if !m.Possible {
			possible = cell{"no", yellow}
		}
		rows = append(rows, []cell{{m.Name, bold}, possible, {m.Reason, plain}})
		if m.Remedy != "" {
			rows = append(rows, []cell{{}, {}, {m.Remedy, command}})
		}
	}
	return rows
}
