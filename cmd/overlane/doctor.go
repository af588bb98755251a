// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/mechanism/express"
	"github.com/overlane/overlane/internal/mechanism/pipeline"
	"github.com/overlane/overlane/internal/names"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/printable"
	"github.com/overlane/overlane/internal/probe"
	"github.com/overlane/overlane/internal/shortcut"
)

// diagnosis is what doctor prints.
type diagnosis struct {
	Schema int          `json:"schema"`
	Tiers  []probe.Tier `json:"tiers"`
	// Mechanisms are what there is beside the pipeline.
	Mechanisms []probe.Mechanism `json:"mechanisms"`
	Features   []probe.Feature   `json:"features"`
	Devices    []seen            `json:"devices"`
	Findings   []probe.Finding   `json:"findings"`
	Skipped    []leftOut         `json:"skipped"`
	// Namespaces are what the namespaces are that others have a number of.
	Namespaces []node.Place `json:"namespaces"`
	// Services are those of the machine that change what overlane goes by. The key is older than the name.
	Services []foreign.Service `json:"neighbours"`
	// Error is why it is not all, or what the configuration needs that this node has not.
	Error string `json:"error,omitempty"`
	// searched is where devices were searched for.
	searched node.Searched
}

// seen is a device that the overlay consists of.
type seen struct {
	Name  string `json:"name"`
	Role  string `json:"role"`
	Netns uint64 `json:"netns"`
	About string `json:"about"`
	// Network is the overlay network of a tunnel or a pod, VNI its number; nil: the tunnel is one for many.
	Network string  `json:"network,omitempty"`
	VNI     *uint32 `json:"vni,omitempty"`
	// Place is that of a pod's own end.
	Place *node.Place `json:"place,omitempty"`
}

type leftOut struct {
	Device string `json:"device"`
	Netns  uint64 `json:"netns"`
	Reason string `json:"reason"`
	// name is what people call it.
	name string
}

func newDoctorCmd() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "What overlane can do here, and what makes the overlay slow",
		Long: `Checks the kernel, the NICs, the tunnels and the pods, for about a second, and
changes nothing.

Its parts:
  TIER       how much of the pipeline is possible: 0 settings, 1 tc (stages behind the NIC on other cores), 2 xdp (the NIC's stage, too), 3 merge (one flow on several cores)
  MECHANISM  which other mechanisms are possible
  FEATURE    what the kernel and the NICs have
  NAME       the NICs, tunnels and pods that were found
  SERVICE    services of this node that change what overlane goes by
  FINDINGS   known causes of a slow overlay, the worst first

What is not possible has one reason and one command. A tier that is not reached
is no error, unless the configuration asks for it.

Each finding has the command that mends it. See to these first: they help without
overlane, too. A command may change more than the overlay; read it before you run
it.

Without root only the kernel is checked.`,
		Example: `  overlane doctor
  overlane doctor --json | jq -r '.findings[].fix'`,
		Args: cobra.NoArgs,
		Annotations: cli.Exits(map[int]string{
			cli.ExitOK:          "overlane can run here",
			cli.ExitUnsupported: "overlane cannot run here; the reason is in the table",
		}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := diagnose(cmd, file)
			if d == nil {
				return err
			}
			if global.json {
				return cli.Told(cmd.OutOrStdout(), d, err, func(message string) { d.Error = message })
			}
			showDiagnosis(newScreen(cmd.OutOrStdout()), d)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `FILE` with the underlays to check")
	return cmd
}

func diagnose(cmd *cobra.Command, file string) (*diagnosis, error) {
	cfg, err := loadConfig(file)
	if err != nil {
		return nil, err
	}
	d := &diagnosis{Schema: control.Schema, Namespaces: []node.Place{}, Devices: []seen{}, Findings: []probe.Finding{}, Skipped: []leftOut{}, Services: []foreign.Service{}}
	d.Services = append(d.Services, foreign.Services(os.DirFS("/proc"))...)
	err = needCapabilities()
	if os.Geteuid() != 0 {
		err = errors.New("devices need root to be scanned: sudo overlane doctor")
	}
	if err != nil {
		d.Features = probe.New().All()
		d.Tiers, d.Mechanisms = probe.Tiers(d.Features), probe.Mechanisms(d.Features)
		return d, err
	}
	s, l, err := scanNode(cmd.Context(), cfg.Underlays)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	required := requireTier(cfg, l.possible())
	l.features = l.stands()
	l.tiers = probe.Tiers(l.features)
	l.tell()
	d.Tiers, d.Mechanisms, d.Features = l.tiers, l.mechanisms(), l.features
	called := names.New(s, l.snap)
	d.Namespaces, d.searched = called.Places(), s.Searched()
	d.devices(l.snap, called)
	v, err := l.view(s)
	if err != nil {
		return d, err
	}
	if err := d.express(v, called); err != nil {
		return d, err
	}
	for _, sk := range pipeline.LeftAlone(s, l.snap, v.Owned(plan.ByPipeline)) {
		d.Skipped = append(d.Skipped, leftOut{sk.Target.Name, sk.Target.NetnsCookie, called.Text(sk.Reason), called.Text(sk.What)})
	}
	found, err := probe.Diagnose(cmd.Context(), s, l.snap, s.Home(), l.owns)
	d.Findings = append(d.Findings, found...)
	if err != nil {
		return d, err
	}
	if cfg.Aggregate == config.ModeAuto {
		if err := d.onlookers(s, l.snap, l.owns); err != nil {
			return d, err
		}
	}
	return d, required
}

// express says what stands between the NICs and the pods that there are, where kernel and NICs allow it.
func (d *diagnosis) express(v *mechanism.View, called names.Names) error {
	i := slices.IndexFunc(d.Mechanisms, func(m probe.Mechanism) bool { return m.Name == "express" && m.Possible })
	if i < 0 || len(v.Snapshot.Pods) == 0 {
		return nil
	}
	p, err := express.Plan(v, governor.Forced)
	if err != nil {
		return err
	}
	skipped := slices.DeleteFunc(p.Skipped, func(sk plan.Skip) bool { return called.Place(sk.Target.NetnsCookie).Balancer })
	pods := 0
	for _, pod := range v.Snapshot.Pods {
		if !called.Place(pod.Peer.NetnsCookie).Balancer {
			pods++
		}
	}
	if len(skipped) == 0 {
		return nil
	}
	m := &d.Mechanisms[i]
	m.Possible = len(skipped) < pods
	m.Reason = fmt.Sprintf("not to %d of %s: %s", len(skipped), printable.Plural(pods, "pod"), called.Text(strings.TrimPrefix(skipped[0].Reason, "no express path: ")))
	return nil
}

// onlookers says why datagrams are not joined (aggregate: auto), once for each reason.
func (d *diagnosis) onlookers(s *node.Scanner, snap node.Snapshot, own func(uint32) bool) error {
	reasons, err := shortcut.NewJoinEligibility(s, own, nil).Scan(snap, true, false)
	if err != nil {
		return err
	}
	told := map[shortcut.Onlooker]bool{}
	add := func(dev node.Dev) {
		why := reasons[dev.Key()]
		if why.What == "" || told[why] {
			return
		}
		told[why] = true
		d.Findings = append(d.Findings, probe.Finding{Level: probe.Note, Device: dev, What: "aggregate leaves it alone: " + strings.TrimPrefix(why.What, shortcut.LeftAlone), Fix: why.See})
	}
	for _, u := range snap.Underlays {
		for _, r := range u.Receivers {
			add(r.Dev)
		}
	}
	for _, t := range snap.Tunnels {
		add(t.Dev)
	}
	return nil
}

func (d *diagnosis) devices(snap node.Snapshot, called names.Names) {
	for _, u := range snap.Underlays {
		d.Devices = append(d.Devices, seen{Name: u.Name, Role: string(control.Underlay), Netns: u.NetnsCookie,
			About: fmt.Sprintf("%s, MTU %d, %s", u.Driver, u.MTU, printable.Plural(u.RxQueues, "receive queue"))})
	}
	for _, t := range snap.Tunnels {
		about := fmt.Sprintf("%s, VNI %d, port %d, MTU %d", t.Kind, t.VNI, t.Port, t.MTU)
		if t.AnyVNI {
			about = fmt.Sprintf("%s, any VNI, port %d, MTU %d", t.Kind, t.Port, t.MTU)
		}
		if t.Bridge != nil {
			about += ", port of bridge " + t.Bridge.Name
		}
		dev := seen{Name: t.Name, Role: string(control.Tunnel), Netns: t.NetnsCookie, Network: called.Network(t)}
		if !t.AnyVNI {
			dev.VNI = &t.VNI
		}
		if dev.Network != t.Name {
			about += ", of Docker's network " + dev.Network
		}
		dev.About = about
		d.Devices = append(d.Devices, dev)
	}
	pod := func(dev node.Dev, place node.Place, about string, tunnels []node.Dev) {
		out := seen{Name: dev.Name, Role: string(control.Pod), Netns: dev.NetnsCookie, Place: &place, About: about}
		if place.Balancer {
			out.Role = string(control.Balancer)
		}
		if place.Engine != "" {
			out.About += ", by " + place.Engine
		}
		if t, ok := called.Overlay(tunnels); ok {
			out.Network = called.Network(t)
			out.About += ", behind " + out.Network
			if !t.AnyVNI {
				out.VNI = &t.VNI
				out.About += fmt.Sprintf(" (VNI %d)", t.VNI)
			}
		}
		d.Devices = append(d.Devices, out)
	}
	for _, p := range snap.Pods {
		pod(p.Host, called.Place(p.Peer.NetnsCookie), fmt.Sprintf("%s, inside %s, MTU %d", p.Host.Name, p.Peer.Name, p.PeerMTU), p.Tunnels)
	}
	for _, p := range snap.Stacked {
		pod(p.Dev, called.Place(p.NetnsCookie), fmt.Sprintf("%s %s on %s, MTU %d", p.Kind, p.Name, p.On.Name, p.MTU), p.Tunnels)
	}
	for _, s := range snap.Skipped {
		d.Skipped = append(d.Skipped, leftOut{s.Dev.Name, s.Dev.NetnsCookie, called.Text(s.Reason), called.Device(s.Dev.Name, s.Dev.NetnsCookie)})
	}
}

func showDiagnosis(s *screen, d *diagnosis) {
	s.table([]string{"TIER", "REACHED", "WHY"}, tierRows(tierStatus(d.Tiers)))
	var rows [][]cell
	for _, m := range d.Mechanisms {
		rows = append(rows, answerRows(m.Name, m.Possible, m.Reason, m.Remedy.String())...)
	}
	s.section([]string{"MECHANISM", "POSSIBLE", "WHY"}, rows)
	s.section([]string{"FEATURE", "", "WHY"}, rowsOf(d.Features, func(f probe.Feature) []cell {
		state := cell{f.State.String(), yellow}
		if f.State == probe.Supported {
			state.style = green
		}
		name := string(f.ID)
		if f.Device != "" {
			name += " of " + f.Device
		}
		return []cell{{name, bold}, state, {f.Reason, plain}}
	}))

	rows = nil
	for _, dev := range d.Devices {
		rows = append(rows, []cell{{nameOf(dev.Name, dev.Place), bold}, {dev.Role, plain}, {dev.About, plain}})
	}
	for _, dev := range d.Skipped {
		rows = append(rows, []cell{{dev.name, bold}, {"left out", yellow}, {dev.Reason, plain}})
	}
	s.section([]string{"NAME", "ROLE", "WHAT"}, rows)
	if len(rows) == 0 && os.Geteuid() == 0 {
		s.line()
		for _, l := range nothingIn(d.searched) {
			s.line(cell{l, plain})
		}
	}
	s.section([]string{"SERVICE", ">PID", "WHAT THAT MEANS"}, rowsOf(d.Services, serviceRow))
	if len(d.Findings) > 0 {
		s.line()
		s.line(cell{"FINDINGS", dim})
	}
	for _, f := range d.Findings {
		color := map[probe.Level]style{probe.Broken: red, probe.Slow: yellow}[f.Level]
		s.table(nil, [][]cell{
			{{fmt.Sprintf("%-6s", f.Level), color}, {f.Device.Name, bold}, {f.What, plain}},
			{{}, {}, {f.Fix.String(), command}},
		})
	}
}

// nothingIn says that no tunnel was found, where, and what would change that.
func nothingIn(l node.Searched) []string {
	lines := []string{"no VXLAN or Geneve tunnel was found that the NICs of this network namespace carry"}
	where := printable.Plural(l.Namespaces, "network namespace") + ", this one and those of processes"
	if len(l.Dirs) > 0 {
		where += ", and what is mounted in " + strings.Join(l.Dirs, ", ")
	}
	lines = append(lines, "looked into: "+where)
	if l.Elsewhere > 0 {
		return append(lines, fmt.Sprintf("NICs of other network namespaces carry %s: run overlane where these NICs are, as with ip netns exec", printable.Plural(l.Elsewhere, "tunnel")))
	}
	return append(lines, "a container engine makes one as soon as a container of an overlay network runs on this node")
}

func serviceRow(n foreign.Service) []cell {
	return []cell{{n.Name, bold}, {n.PID, plain}, {n.Means, plain}}
}
