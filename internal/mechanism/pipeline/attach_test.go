// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism/mechanismtest"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
	"github.com/overlane/overlane/internal/xdp"
)

// bench is a node with devices.
type bench struct {
	*fixture
	settings map[int]node.Settings // of devices that are not stock, by ifindex
	express  map[int]bool          // pods whose packets come straight from the NIC
	features map[int][]string      // that are on
}

// programs is a kernel side that remembers what it has attached, by ifindex.
type programs struct {
	*kernel
	on map[int]string
}

type attached struct {
	programs
	to int
}

func (l attached) Close() error { delete(l.on, l.to); return nil }

func (p programs) put(d datapath.Device, program string) (io.Closer, error) {
	p.on[d.Ifindex] = program
	return attached{p, d.Ifindex}, nil
}

func (p programs) AttachUnderlay(d datapath.Device) (io.Closer, error) {
	return p.put(d, "ol_underlay_in")
}

func (p programs) AttachUnderlaySplit(d datapath.Device) (io.Closer, error) {
	return p.put(d, "ol_underlay_split")
}

func (p programs) AttachUnderlayNumber(d datapath.Device) (io.Closer, error) {
	return p.put(d, "ol_underlay_number")
}

func (p programs) AttachTunnel(d datapath.Device) (io.Closer, error) {
	return p.put(d, "ol_tunnel_clear")
}

func (p programs) AttachPod(d datapath.Device) (io.Closer, error) { return p.put(d, "ol_pod_out") }

func (p programs) AttachPodMerge(d datapath.Device) (io.Closer, error) {
	return p.put(d, "ol_pod_merge")
}

func (p programs) AttachPodLeftAlone(d datapath.Device) (io.Closer, error) {
	return p.put(d, "ol_pod_restore")
}

func (b *bench) Readings() (node.Reader, map[plan.Setting]plan.Owned) { return b, nil }
func (b *bench) Express(p node.Pod) bool                              { return b.express[p.Peer.Ifindex] }
func (b *bench) Features(d node.Dev) (map[string]ethtool.Feature, error) {
	features := map[string]ethtool.Feature{}
	for _, f := range b.features[d.Ifindex] {
		features[f] = ethtool.Feature{Active: true}
	}
	return features, nil
}
func (b *bench) Namespace(uint64) (*netns.Handle, error) { return nil, node.ErrGone }
func (b *bench) Settings(d node.Dev) (node.Settings, error) {
	if s, other := b.settings[d.Ifindex]; other {
		return s, nil
	}
	return node.Settings{RPSCPUs: []string{"0"}, RPSFlowCnt: []uint32{0}}, nil
}

func device(name string, index int) node.Dev {
	return node.Dev{NetnsCookie: 1, Ifindex: index, Name: name}
}

// pod is the nth of a bench: its host end has index 10n, its other end 10n+1.
func pod(n int, tunnels ...node.Dev) node.Pod {
	return node.Pod{Host: device(fmt.Sprintf("veth%d", n), 10*n), Peer: device(fmt.Sprintf("eth%d", n), 10*n+1), Tunnels: tunnels}
}

// live is a bench whose devices have the masks that the kernel has.
type live struct{ *bench }

func mask(d node.Dev) plan.Setting { return plan.RPSMask(plan.Target(d), 0) }

func (l live) Readings() (node.Reader, map[plan.Setting]plan.Owned) { return l, nil }
func (l live) Settings(d node.Dev) (node.Settings, error) {
	return node.Settings{RPSCPUs: []string{l.Values[mask(d)]}, RPSFlowCnt: []uint32{0}}, nil
}

func (l live) Entries() (list []apply.Entry) {
	for s, o := range l.Host.Owned(plan.ByPipeline) {
		list = append(list, apply.Entry{Setting: s, By: plan.ByPipeline, First: o.First, Wrote: o.Wrote})
	}
	return list
}

// inPlace is a live bench on which masks and programs are in place, with these devices, some of which refuse a mask.
func inPlace(t *testing.T, layout governor.Layout, snap node.Snapshot, refuse ...node.Dev) (live, programs) {
	t.Helper()
	l := live{&bench{newFixture(Options{Mode: governor.Forced}), nil, nil, nil}}
	l.Values = map[plan.Setting]string{}
	for _, d := range refuse {
		l.Refuses[plan.Target(d)] = "no such mask"
	}
	k := programs{&l.kernel, map[int]string{}}
	l.Pipeline = New(l, k, l.opts)
	a := l.actuator
	a.layout = layout
	l.appear(snap)
	made := a.plan(snap)
	if err := errors.Join(a.attachPrograms(made), a.setMasks(snap, made)); err != nil {
		t.Fatal(err)
	}
	return l, k
}

// appear gives new devices the kernel's masks.
func (l live) appear(snap node.Snapshot) {
	devs := []node.Dev{}
	for _, t := range snap.Tunnels {
		devs = append(devs, t.Dev)
	}
	for _, p := range snap.Pods {
		devs = append(devs, p.Peer)
	}
	for _, d := range devs {
		if _, known := l.Values[mask(d)]; !known {
			l.Values[mask(d)] = "0"
		}
	}
}

// crowd is a live bench on which the programs know as few tunnels as they do, and its log.
type crowd struct {
	live
	log     strings.Builder
	tunnels []node.Tunnel // that they know
}

func (c *crowd) Log() *slog.Logger { return slog.New(slog.NewTextHandler(&c.log, nil)) }

func (c *crowd) SetTunnels(snap node.Snapshot) error {
	if c.tunnels = snap.Tunnels; len(c.tunnels) > datapath.MaxTunnels {
		return fmt.Errorf("%w: %d", datapath.ErrTooManyTunnels, len(c.tunnels))
	}
	return nil
}

// Tunnels beyond those that the programs know are left alone, as are the pods behind them, and the log says so once.
func TestTunnelsBeyondTheMostAreLeftAlone(t *testing.T) {
	u := device("u0", 2)
	snap := node.Snapshot{Underlays: []node.Underlay{{Dev: u}}}
	for i := range datapath.MaxTunnels + 2 {
		vx := device(fmt.Sprintf("vx%d", i), 1000+i)
		snap.Tunnels = append(snap.Tunnels, node.Tunnel{Dev: vx, VNI: uint32(i), Underlays: []node.Dev{u}})
		snap.Pods = append(snap.Pods, pod(i+1, vx))
	}
	l, k := inPlace(t, governor.Layout{Tunnel: []int{1}, Pod: []int{0}}, snap)
	c := &crowd{live: l}
	l.Pipeline = New(c, k, l.opts)
	a := l.actuator
	a.layout = governor.Layout{Tunnel: []int{1}, Pod: []int{0}}
	for range 3 {
		if err := a.follow(snap); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.tunnels) != datapath.MaxTunnels || c.tunnels[0].Name != "vx0" {
		t.Errorf("the programs were told of %d tunnels", len(c.tunnels))
	}
	for i, tun := range snap.Tunnels {
		tunnel, pod := "2", "1"
		if i >= datapath.MaxTunnels {
			tunnel, pod = "0", "0"
		}
		if gotTunnel, gotPod := l.Values[mask(tun.Dev)], l.Values[mask(snap.Pods[i].Peer)]; gotTunnel != tunnel || gotPod != pod {
			t.Errorf("masks of %s and the pod behind it: %s and %s, want %s and %s", tun.Name, gotTunnel, gotPod, tunnel, pod)
		}
	}
	if got := strings.Count(c.log.String(), "some tunnels are left alone"); got != 1 {
		t.Errorf("the log says it %d times", got)
	}
}

// A tunnel without a mask, known to the programs for priority's sake, takes no place of one that has a mask.
func TestATunnelWithAMaskIsKnown(t *testing.T) {
	foreign, u := device("u0", 2), device("u1", 3)
	for masks := datapath.MaxTunnels - 1; masks <= datapath.MaxTunnels; masks++ {
		snap := node.Snapshot{
			Underlays: []node.Underlay{{Dev: foreign}, {Dev: u}}, Skipped: []node.Skip{{Dev: foreign, Reason: "another program's"}},
			Tunnels: []node.Tunnel{{Dev: device("vx", 999), VNI: 999, Underlays: []node.Dev{foreign}}},
		}
		for i := range masks {
			snap.Tunnels = append(snap.Tunnels, node.Tunnel{Dev: device(fmt.Sprintf("vx%d", i), 1000+i), VNI: uint32(i), Underlays: []node.Dev{u}})
		}
		layout := governor.Layout{Tunnel: []int{1}}
		l, k := inPlace(t, layout, node.Snapshot{Underlays: snap.Underlays, Tunnels: snap.Tunnels[1:]})
		l.Values[mask(snap.Tunnels[0].Dev)] = "4" // another program's
		c := &crowd{live: l}
		l.Pipeline = New(c, k, l.opts)
		l.actuator.layout = layout
		if err := l.actuator.follow(snap); err != nil {
			t.Fatal(err)
		}
		known := map[node.DevKey]bool{}
		for _, tun := range c.tunnels {
			known[tun.Key()] = true
		}
		for _, tun := range snap.Tunnels[1:] {
			if !known[tun.Key()] || l.Values[mask(tun.Dev)] != "2" {
				t.Errorf("%s has mask %s, known: %t", tun.Name, l.Values[mask(tun.Dev)], known[tun.Key()])
			}
		}
		room := masks < datapath.MaxTunnels
		if len(c.tunnels) != datapath.MaxTunnels || known[snap.Tunnels[0].Key()] != room || strings.Contains(c.log.String(), "some tunnels are left alone") == room {
			t.Errorf("the programs were told of %d tunnels beside %d masks, the log says:\n%s", len(c.tunnels), masks, &c.log)
		}
	}
}

// A pod whose tunnel is refused its mask keeps neither mask nor program.
func TestAPodBehindARefusedTunnelKeepsNothing(t *testing.T) {
	u, vx, vx2 := device("u0", 2), device("vx0", 3), device("vx1", 4)
	snap := node.Snapshot{Underlays: []node.Underlay{{Dev: u}}, Tunnels: []node.Tunnel{{Dev: vx, Underlays: []node.Dev{u}}, {Dev: vx2, Underlays: []node.Dev{u}}}, Pods: []node.Pod{pod(1, vx), pod(2, vx2)}}
	l, k := inPlace(t, governor.Layout{Tunnel: []int{1}, Pod: []int{0}}, snap, vx2)
	for d, want := range map[node.Dev]string{vx: "2", vx2: "0", snap.Pods[0].Peer: "1", snap.Pods[1].Peer: "0"} {
		if got := l.Values[mask(d)]; got != want {
			t.Errorf("mask of %s is %s, want %s", d.Name, got, want)
		}
	}
	if want := map[int]string{2: "ol_underlay_in", 3: "ol_tunnel_clear", 10: "ol_pod_out"}; !maps.Equal(k.on, want) {
		t.Errorf("programs %v, want %v", k.on, want)
	}
	if err := l.actuator.follow(snap); err != nil {
		t.Errorf("nothing has changed since: %v", err)
	}
}

// Flows to a pod drain before it loses mask and program, because another program has taken over its only tunnel, or
// the kernel refuses the tunnel that it comes by now. Until then nothing changes, however often the node is scanned.
func TestAPodDrainsBeforeItLosesItsMask(t *testing.T) {
	u, vx, vx2 := device("u0", 2), device("vx0", 3), device("vx1", 4)
	before := node.Snapshot{Underlays: []node.Underlay{{Dev: u}}, Tunnels: []node.Tunnel{{Dev: vx, Underlays: []node.Dev{u}}}, Pods: []node.Pod{pod(1, vx)}}
	moved := before
	moved.Tunnels = append(slices.Clone(before.Tunnels), node.Tunnel{Dev: vx2, Underlays: []node.Dev{u}})
	moved.Pods = []node.Pod{pod(1, vx2)}
	for name, tt := range map[string]struct {
		layout governor.Layout
		snap   node.Snapshot
		tunnel string // its mask
	}{
		"another program, the pod stage alone": {governor.Layout{Pod: []int{1}}, before, "2"},
		"the kernel":                           {governor.Layout{Tunnel: []int{1}, Pod: []int{1}}, moved, "2"},
	} {
		t.Run(name, func(t *testing.T) {
			l, k := inPlace(t, tt.layout, before, vx2)
			peer := before.Pods[0].Peer
			l.appear(tt.snap)
			l.Values[mask(vx)] = tt.tunnel
			for range 2 {
				if err := l.actuator.follow(tt.snap); !errors.Is(err, errChangedHands) {
					t.Fatalf("flows do not have to drain: %v", err)
				}
				if got := l.Values[mask(peer)]; got != "2" || k.on[10] != "ol_pod_out" {
					t.Fatalf("before that, the pod has mask %s and program %q", got, k.on[10])
				}
			}
			said := func(s plan.Skip) bool { return s.Target == plan.Target(peer) && s.Whole() }
			if !slices.ContainsFunc(l.Skipped(), said) {
				t.Errorf("a status has no reason: %+v", l.Skipped())
			}
		})
	}
}

// Flows drain before a pod's end that has left the overlay, and lives on, gets its mask back and its program goes. One
// whose mask cannot be brought back takes nothing off.
func TestAPodThatLeavesTheOverlayDrainsBeforeItLosesItsMask(t *testing.T) {
	u, vx := device("u0", 2), device("vx0", 3)
	snap := node.Snapshot{Underlays: []node.Underlay{{Dev: u}}, Tunnels: []node.Tunnel{{Dev: vx, Underlays: []node.Dev{u}}}, Pods: []node.Pod{pod(1, vx), pod(2, vx)}}
	l, k := inPlace(t, governor.Layout{Pod: []int{1}}, snap)
	peer := snap.Pods[0].Peer
	snap.Pods = snap.Pods[1:]
	for range 2 {
		if err := l.actuator.follow(snap); !errors.Is(err, errChangedHands) {
			t.Fatalf("flows do not have to drain: %v", err)
		}
		if got := l.Values[mask(peer)]; got != "2" || k.on[10] != "ol_pod_out" {
			t.Fatalf("before that, the pod has mask %s and program %q", got, k.on[10])
		}
	}
	l.Keeps[plan.Target(peer)] = "refused"
	if err := l.actuator.follow(snap); err != nil || l.Values[mask(snap.Pods[0].Peer)] != "2" {
		t.Errorf("where it cannot be brought back: %v", err)
	}
}

// What is attached is what the plan has, whatever keeps devices from being steered.
func TestTheProgramsAreThoseOfThePlan(t *testing.T) {
	u, vx, vx2 := device("u0", 2), device("vx0", 3), device("vx1", 4)
	held := pod(2, vx)
	held.HostQdisc = "fq"
	masked := node.Settings{RPSCPUs: []string{"2"}, RPSFlowCnt: []uint32{0}}
	const cleared = ", vx0 ol_tunnel_clear, vx1 ol_tunnel_clear"
	one, two, branches := []int{1}, []int{0}, []governor.Branches{{Cores: []int{1}}}
	for name, tt := range map[string]struct {
		layout   governor.Layout
		pods     []node.Pod
		settings map[int]node.Settings
		express  map[int]bool
		features map[int][]string
		want     string
		masks    string // devices that get one
	}{
		"both stages": {layout: governor.Layout{Tunnel: one, Pod: two}, pods: []node.Pod{pod(1, vx)}, want: "u0 ol_underlay_in, veth1 ol_pod_out" + cleared, masks: "vx0 vx1 eth1"},
		// Without the one on the underlay the one at the pod would steer nothing.
		"the pod stage alone":             {layout: governor.Layout{Pod: one}, pods: []node.Pod{pod(1, vx)}, want: "u0 ol_underlay_in, veth1 ol_pod_out" + cleared, masks: "eth1"},
		"the pod stage alone, and no pod": {layout: governor.Layout{Pod: one}},
		"a queueing discipline":           {layout: governor.Layout{Tunnel: one, Pod: two}, pods: []node.Pod{pod(1, vx), held}, want: "u0 ol_underlay_in, veth1 ol_pod_out, veth2 ol_pod_restore" + cleared, masks: "vx0 vx1 eth1"},
		"a pod's end that NAPI polls": {layout: governor.Layout{Tunnel: one, Pod: two}, pods: []node.Pod{pod(1, vx)}, features: map[int][]string{11: {ethtool.GRO}},
			want: "u0 ol_underlay_in, veth1 ol_pod_restore" + cleared, masks: "vx0 vx1"},
		"a pod's end whose GRO has no packets": {layout: governor.Layout{Tunnel: one, Pod: two}, pods: []node.Pod{pod(1, vx)}, features: map[int][]string{10: {"tx-tcp6-segmentation"}, 11: {ethtool.GRO}},
			want: "u0 ol_underlay_in, veth1 ol_pod_out" + cleared, masks: "vx0 vx1 eth1"},
		"a mask that cannot be written": {layout: governor.Layout{Tunnel: one, Pod: two}, pods: []node.Pod{pod(1, vx)}, settings: map[int]node.Settings{11: {Unwritable: "read only"}},
			want: "u0 ol_underlay_in, veth1 ol_pod_restore" + cleared, masks: "vx0 vx1"},
		"a mask of another program": {layout: governor.Layout{Tunnel: one, Pod: two}, pods: []node.Pod{pod(1, vx)}, settings: map[int]node.Settings{11: masked},
			want: "u0 ol_underlay_in, veth1 ol_pod_restore" + cleared, masks: "vx0 vx1"},
		"a pod of express'": {layout: governor.Layout{Tunnel: one, Pod: two}, pods: []node.Pod{pod(1, vx), pod(2, vx)}, express: map[int]bool{21: true},
			want: "u0 ol_underlay_in, veth1 ol_pod_out, veth2 ol_pod_restore" + cleared, masks: "vx0 vx1 eth1"},
		"nothing to steer but pods that are left alone": {layout: governor.Layout{Pod: two}, pods: []node.Pod{held}},
		// No packet with a hash of ours comes to the pod.
		"a pod behind a tunnel of another program's": {layout: governor.Layout{Tunnel: one, Pod: two}, pods: []node.Pod{pod(1, vx), pod(2, vx2)}, settings: map[int]node.Settings{4: masked},
			want: "u0 ol_underlay_in, veth1 ol_pod_out, vx0 ol_tunnel_clear", masks: "vx0 eth1"},
		"all tunnels are another program's":                          {layout: governor.Layout{Tunnel: one, Pod: two}, pods: []node.Pod{pod(1, vx), held}, settings: map[int]node.Settings{3: masked, 4: masked}},
		"all tunnels are another program's, and the pod stage alone": {layout: governor.Layout{Pod: two}, pods: []node.Pod{pod(1, vx)}, settings: map[int]node.Settings{3: masked, 4: masked}},
		"micro-flows behind a resequencer": {layout: governor.Layout{Split: true, Merge: true, Tunnel: one, Pod: two, Sets: branches}, pods: []node.Pod{pod(1, vx), held, pod(3, vx)}, settings: map[int]node.Settings{31: masked},
			want: "u0 ol_underlay_split, veth1 ol_pod_merge, veth2 ol_pod_restore, veth3 ol_pod_merge" + cleared, masks: "vx0 vx1"},
		"micro-flows without one": {layout: governor.Layout{Split: true, Tunnel: one, Sets: branches}, pods: []node.Pod{pod(1, vx), held},
			want: "u0 ol_underlay_split, veth1 ol_pod_restore, veth2 ol_pod_restore" + cleared, masks: "vx0 vx1"},
	} {
		t.Run(name, func(t *testing.T) {
			b := &bench{newFixture(Options{Mode: governor.Forced}), tt.settings, tt.express, tt.features}
			k := programs{&b.kernel, map[int]string{}}
			b.Pipeline = New(b, k, b.opts)
			snap := node.Snapshot{Underlays: []node.Underlay{{Dev: u}}, Tunnels: []node.Tunnel{{Dev: vx, Underlays: []node.Dev{u}}, {Dev: vx2, Underlays: []node.Dev{u}}}, Pods: tt.pods}
			a := b.actuator
			a.past = func(*shortcut.Watchers, node.Snapshot) map[node.DevKey]string {
				skips := map[node.DevKey]string{}
				for _, pod := range tt.pods {
					skips[pod.Host.Key()] = map[string]string{"veth2": "the qdisc fq is on veth2"}[pod.Host.Name]
				}
				return skips
			}
			if a.layout = tt.layout; tt.layout.Merge {
				a.merge = &merging{namespaces: map[uint64]behind{1: {program: attached{k, 0}}}}
			}
			made := a.plan(snap)
			if err := a.attachPrograms(made); err != nil {
				t.Fatal(err)
			}
			names := map[int]string{2: "u0", 3: "vx0", 4: "vx1"}
			for _, p := range tt.pods {
				names[p.Host.Ifindex] = p.Host.Name
			}
			var there, planned, masks []string
			for at, program := range k.on {
				there = append(there, names[at]+" "+program)
			}
			for _, at := range made.Attach {
				planned = append(planned, at.Name+" "+at.Program)
			}
			for _, s := range made.Steps {
				if s.Kind == plan.SysfsAttr {
					masks = append(masks, s.Name)
				}
			}
			said := func(s plan.Skip) bool {
				return strings.HasPrefix(s.What, "ol_pod_merge at tcx egress of veth2") && strings.HasSuffix(s.Reason, ": the qdisc fq is on veth2")
			}
			if got := slices.ContainsFunc(b.Skipped(), said); got != tt.layout.Merge {
				t.Errorf("a status says of a pod that its flows stay whole: %t; %+v", got, b.Skipped())
			}
			slices.Sort(there)
			slices.Sort(planned)
			if got := strings.Join(there, ", "); got != tt.want {
				t.Errorf("attached: %s; want %s", got, tt.want)
			}
			if got := strings.Join(planned, ", "); got != tt.want {
				t.Errorf("planned: %s; want %s", got, tt.want)
			}
			if got := strings.Join(masks, " "); got != tt.masks {
				t.Errorf("masks of %q, want %q", got, tt.masks)
			}
		})
	}
}

// withPlaces are a bench's NICs.
type withPlaces struct {
	*bench
	places *xdp.Places
}

func (w withPlaces) Places() *xdp.Places { return w.places }

type ground struct{}

func (ground) Look(node.Underlay) (xdp.State, error) { return xdp.State{Up: true}, nil }

// The program stays on a NIC, for it costs something to come and to go. Where an operator switches RPS on there flows
// leave its lanes, and have none before the NIC's stage.
func TestFlowsLeaveTheNICsLanesWhereRPSComes(t *testing.T) {
	memory, err := xdp.Remember(nil)
	if err != nil {
		t.Fatal(err)
	}
	places := xdp.New(ground{}, memory, slog.New(slog.DiscardHandler))
	b := &bench{newFixture(Options{Mode: governor.Forced}), nil, nil, nil}
	b.Pipeline = New(withPlaces{b, places}, programs{&b.kernel, map[int]string{}}, b.opts)
	b.opts.Tier = governor.XDP
	u := node.Underlay{Dev: device("u0", 2)}
	attach := func() (io.Closer, error) { return io.NopCloser(nil), nil }
	if err := places.Take(u, xdp.Want{By: xdp.Pipeline, Asked: true}, attach); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		moves, tier string
		nic         []int
		drains      bool
	}{
		{"", "", []int{1}, false},
		{"RPS moves what u0 receives", "RPS moves what u0 receives", []int{1}, true},
		{"RPS moves what u0 receives", "RPS moves what u0 receives", nil, false},
	} {
		u.Moves = tt.moves
		b.Node = node.Snapshot{Underlays: []node.Underlay{u}}
		b.actuator.layout = governor.Layout{NIC: tt.nic, Tunnel: []int{0}}
		if err := b.actuator.follow(b.Node); errors.Is(err, errChangedHands) != tt.drains {
			t.Errorf("%+v: %v", tt, err)
		}
		if why := b.noXDPTier(); why != tt.tier {
			t.Errorf("%+v: behind the NIC's stage because %q", tt, why)
		}
	}
}

// What RPS takes to other cores the guard does not see, and flows may find no lane empty for long.
func TestFlowsThatRPSKeepsOnLanesAreNotWaitedForLong(t *testing.T) {
	memory, err := xdp.Remember(nil)
	if err != nil {
		t.Fatal(err)
	}
	places := xdp.New(ground{}, memory, slog.New(slog.DiscardHandler))
	for name, rps := range map[string]string{"RPS": "RPS moves what u0 receives", "no RPS": ""} {
		synctest.Test(t, func(t *testing.T) {
			b := &bench{newFixture(Options{Mode: governor.Forced}), nil, nil, nil}
			b.Pipeline = New(withPlaces{b, places}, comes{kernel: &b.kernel, lanes: 1}, b.opts)
			u := node.Underlay{Dev: device("u0", 2)}
			attach := func() (io.Closer, error) { return io.NopCloser(nil), nil }
			if err := places.Take(u, xdp.Want{By: xdp.Pipeline, Asked: true}, attach); err != nil {
				t.Fatal(err)
			}
			u.Moves = rps
			b.Node = node.Snapshot{Underlays: []node.Underlay{u}}
			b.actuator.layout, b.actuator.armed, b.evict = governor.Layout{NIC: []int{1}, Tunnel: []int{0}}, true, true
			err := b.act(t.Context(), governor.Decision{State: governor.Active}, governor.Input{Now: b.now}, b.trial, governor.Forced)
			if gone := !b.Armed() && !places.On(u); err != nil || gone != (rps != "") {
				t.Errorf("%s: in place %t, its program on the NIC %t, %v", name, b.Armed(), places.On(u), err)
			}
		})
	}
}

// comes is a kernel side that counts so many packets more each time that it is asked.
type comes struct {
	*kernel
	hook, tunnel, lanes uint64
	unread              uint64 // of those that no program counts as the overlay's
	queued              uint64 // that come out of the tunnel before the hook sees any, and no more come then; 0: it is not so
}

func (c comes) Counters() (datapath.Counters, error) {
	if c.left() {
		return c.counted, nil
	}
	c.counted.Stock = map[string]uint64{"outer-vlan": c.counted.Stock["outer-vlan"] + c.unread}
	c.counted.Overlay, c.counted.XDPLane = c.counted.Overlay+c.hook, c.counted.XDPLane+c.lanes
	return c.counted, nil
}

func (c comes) Cores() ([]datapath.Core, error) {
	if c.was == nil {
		c.was = make([]datapath.Core, 1)
	}
	if c.queued == 0 || c.left() {
		c.was[0].Packets[datapath.Tunnel] += c.tunnel
	}
	return c.was, nil
}

// left reports whether some are in the queue.
func (c comes) left() bool {
	return c.queued > 0 && (c.was == nil || c.was[0].Packets[datapath.Tunnel] < c.queued)
}

// Masks would spread flows that the programs on the NICs cannot tell, as where IPsec encrypts what is outside. Why they
// cannot is said as far as it can be.
func TestWhatTheProgramsDoNotSeeIsNotSpread(t *testing.T) {
	u, u2, vx, vx2 := device("u0", 2), device("u1", 4), device("vx0", 3), device("vx1", 5)
	snap := node.Snapshot{Tunnels: []node.Tunnel{{Dev: vx, VNI: 1, Underlays: []node.Dev{u}}, {Dev: vx2, VNI: 2, Underlays: []node.Dev{u2}}}}
	const byAnother = "they come by a device that is no underlay"
	for name, tt := range map[string]struct {
		came    comes
		left    []node.Dev // alone
		ipsec   bool
		nothing string // is steered, for that
		words   string
	}{
		"seen":                             {came: comes{hook: 1, tunnel: 100}},
		"not seen":                         {came: comes{tunnel: 100}, words: byAnother},
		"not seen, beside IPsec":           {came: comes{tunnel: 100}, ipsec: true, words: "they may be encrypted, or come by"},
		"not read":                         {came: comes{tunnel: 100, unread: 100}, ipsec: true, words: "cannot read the packets that come out of tunnels: outer-vlan"},
		"nothing":                          {},
		"nothing is steered":               {came: comes{tunnel: 100}, nothing: "there is no pod yet"},
		"queued before, and then seen":     {came: comes{hook: 1, tunnel: 100, queued: 1000}},
		"queued before, and no more":       {came: comes{tunnel: 100, queued: 1000}, words: byAnother},
		"a tunnel left alone, and its NIC": {came: comes{tunnel: 100}, left: []node.Dev{vx, u}},
		// Its packets are not counted.
		"a tunnel left alone": {came: comes{tunnel: 100}, left: []node.Dev{vx}, words: byAnother},
	} {
		b := &bench{newFixture(Options{Mode: governor.Forced}), nil, nil, nil}
		tt.came.kernel = &b.kernel
		b.Pipeline = New(b, tt.came, b.opts)
		b.actuator.decrypts = func(node.Snapshot) bool { return tt.ipsec }
		b.actuator.left, b.actuator.nothing = map[node.DevKey]bool{}, tt.nothing
		for _, d := range tt.left {
			b.actuator.left[d.Key()] = true
		}
		err := b.actuator.sees(t.Context(), snap)
		if (err == nil) != (tt.words == "") || err != nil && !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Once it is in place, a status says which part of the packets no program sees, and that no more as soon as all are seen.
func TestPacketsThatNoProgramSeesAreSaid(t *testing.T) {
	f := newFixture(Options{Mode: governor.Forced})
	f.actuator.decrypts = func(node.Snapshot) bool { return false }
	f.after(t, time.Second)
	f.is(t, true, control.Active, "forced")
	f.was = make([]datapath.Core, 1)
	for _, tt := range []struct {
		seen, unread, tunnels uint64
		say                   string
	}{
		{1000, 0, 1000, ""}, // a window to begin with
		{1000, 0, 1000, ""},
		{480, 20, 1000, "at least 50 % of the packets that come out of tunnels are seen by no program on a NIC"},
		{990, 0, 1000, ""},
		{0, 1000, 1000, ""},
		{50_000, 0, 1000, ""}, // frames that GRO has joined
		{0, 0, 90, ""},
	} {
		f.counted.Overlay += tt.seen
		f.counted.Stock = map[string]uint64{"outer-fragment": f.counted.Stock["outer-fragment"] + tt.unread}
		f.was[0].Packets[datapath.Tunnel] += tt.tunnels
		f.after(t, shareEvery)
		f.is(t, true, control.Active, tt.say)
		if m := f.Report()[0]; tt.say == "" && m.Reason != "forced by configuration" {
			t.Errorf("%+v: %s", tt, m.Reason)
		}
	}
}

// What is missing is said by the pipeline and by micro-flows, whatever was asked for, and neither acts; once it is there,
// they do.
func TestWithoutANICNeitherIsActive(t *testing.T) {
	over, why := mechanismtest.OverTUN()
	for _, opts := range []Options{
		{Mode: governor.Forced}, {Mode: governor.Auto},
		{Mode: governor.Auto, Microflows: Microflows{Mode: governor.Forced, Batch: 64, Cores: 1, Unordered: true, NoMerge: errors.New("no qdisc"), NoXDP: errors.New("no cpumap")}},
	} {
		f := newFixture(opts)
		served := f.Node
		says := func(state control.MechanismState, why string) {
			t.Helper()
			f.is(t, false, state, why)
			if m := f.Report()[1]; opts.Microflows.Batch > 0 && (m.State != state || m.Reason != why) {
				t.Errorf("micro-flows: %+v, want %s, %s", m, state, why)
			}
		}
		for snap, why := range map[*node.Snapshot]string{&over: why, {}: "there is no VXLAN or Geneve tunnel yet"} {
			f.Node = *snap
			says(control.Standby, why) // before any window
			f.after(t, time.Second)
			says(control.Standby, why)
		}
		f.Node = served
		f.after(t, time.Second)
		if forced := opts.Mode == governor.Forced || opts.Microflows.Mode == governor.Forced; f.Armed() != forced {
			t.Errorf("%+v: in place once there is a NIC: %t", opts, f.Armed())
		}
	}
}

// In place, and with nothing to steer, it is not active: the first of what is left alone says why.
func TestWithNothingToSteerItIsNotActive(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*fixture)
		armed  bool
		state  control.MechanismState
		why    string
	}{
		"no pod": {func(f *fixture) { f.Node.Pods = nil }, false, control.Standby, "there is no pod yet"},
		"the only pod is shaped": {func(f *fixture) { f.Node.Pods[0].HostQdisc = "tbf" }, true, control.Manual,
			"the only pod is left alone: eth0 (ifindex 105 in network namespace 1): qdisc tbf on its host end"},
		"each tunnel has a mask": {func(f *fixture) { f.Values[mask(f.Node.Tunnels[0].Dev)] = "3" }, true, control.Manual,
			"the only tunnel is left alone: vx0 (ifindex 103 in network namespace 1): RPS mask set by another program"},
		"all are served": {func(*fixture) {}, true, control.Active, "forced"},
	} {
		f := newFixture(Options{Mode: governor.Forced})
		f.actuator.decrypts = func(node.Snapshot) bool { return true }
		f.Pipeline.dp = comes{kernel: &f.kernel, tunnel: 1000, hook: 1000}
		f.onNIC = true // beside priority the pods' stage alone moves
		f.latency = []int{0}
		tt.change(f)
		f.after(t, time.Second)
		t.Log(name)
		f.is(t, tt.armed, tt.state, tt.why)
	}
}

// A look that pods interrupt as they come makes no flow whole; a few in a row do.
func TestALookThatReadsNothingChangesNothingAtFirst(t *testing.T) {
	held, free, fresh := node.DevKey{NetnsCookie: 1, Ifindex: 2}, node.DevKey{NetnsCookie: 1, Ifindex: 3}, node.DevKey{NetnsCookie: 1, Ifindex: 4}
	pods := func(keys ...node.DevKey) (list []node.Pod) {
		for _, k := range keys {
			list = append(list, node.Pod{Host: node.Dev{NetnsCookie: k.NetnsCookie, Ifindex: k.Ifindex}})
		}
		return list
	}
	m := new(merging)
	reads := func() map[node.DevKey]string {
		return map[node.DevKey]string{held: "the qdisc fq is on veth2", free: ""}
	}
	m.skips(reads(), pods(held, free))
	for look := range 2 * mostUnread {
		got := m.skips(map[node.DevKey]string{}, pods(held, free, fresh))
		if (got[free] == "") != (look < mostUnread) || got[held] == "" || got[fresh] == "" {
			t.Errorf("look %d that reads nothing: %v", look, got)
		}
	}
	for range 2 {
		if got := m.skips(reads(), pods(held, free)); got[free] != "" || got[held] != reads()[held] {
			t.Errorf("read again: %v", got)
		}
	}
	if got := m.skips(map[node.DevKey]string{}, pods(free)); got[free] != "" {
		t.Errorf("the next look that reads nothing: %v", got)
	}
}
