// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
)

// What would tell joined datagrams keeps from joining what leads there, and nothing else.
func TestWhereDatagramsAreNotJoined(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds network namespaces")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	b, err := bed.Up(bed.Options{Name: fmt.Sprintf("j%d", os.Getpid()%100000), StateDir: filepath.Join(t.TempDir(), "lab"), Topology: bed.Nested, Pods: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Down(); err != nil {
			t.Error(err)
		}
	}()
	h := b.Receiver()
	s, err := node.NewScanner(node.Options{Home: h.NS})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	snap, err := s.Scan(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	j := shortcut.NewJoinEligibility(s, func(uint32) bool { return false }, nil)
	scan := func() (wire, tunnel string) {
		t.Helper()
		reasons, err := j.Scan(snap, true, true)
		if err != nil {
			t.Fatal(err)
		}
		return reasons[snap.Underlays[0].Key()].String(), reasons[snap.Tunnels[0].Key()].String()
	}
	nft := func(ns *netns.Handle, args string) {
		t.Helper()
		err := ns.Do(func() error {
			if out, err := exec.Command("nft", args).CombinedOutput(); err != nil {
				return fmt.Errorf("%w\n%s", err, out)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name, hook   string
		ns           *netns.Handle
		wire, tunnel bool
		where        string
	}{
		{"in a pod", "input", h.Pods[1].NS, true, true, "left alone: in the pod behind " + h.Pods[1].HostEnd + ", rule handle"},
		{"in the tunnel's namespace", "forward", h.Overlay, true, true, "left alone: in the namespace of " + bed.Tunnel + ", rule handle"},
		{"on the host", "forward", h.NS, true, false, "left alone: rule handle"},
	} {
		if wire, tunnel := scan(); wire != "" || tunnel != "" {
			t.Errorf("before anything is %s: wire %q, tunnel %q", tt.name, wire, tunnel)
		}
		nft(tt.ns, "add table ip x { chain f { type filter hook "+tt.hook+" priority 0; meta length 0-300 accept; }; }")
		wire, tunnel := scan()
		if (wire != "") != tt.wire || (tunnel != "") != tt.tunnel || !strings.HasPrefix(wire, tt.where) || !strings.Contains(wire, "nft -a list chain ip x f") {
			t.Errorf("%s: wire %q, tunnel %q", tt.name, wire, tunnel)
		}
		// What overlane has switched on by then is taken back.
		reasons, err := j.Scan(snap, false, true)
		if err != nil {
			t.Fatal(err)
		}
		on := plan.Aggregates(plan.Target(snap.Underlays[0].Dev))
		setForwarding(t, h, true)
		made := plan.Aggregate(planInput(s, snap, snap.Tunnels, map[plan.Setting]plan.Owned{on: {First: "off", Wrote: "on"}}, reasons))
		if i := slices.IndexFunc(made.Steps, func(s plan.Step) bool { return s.Setting == on }); i < 0 || made.Steps[i].Want != "off" {
			t.Errorf("%s: steps %+v", tt.name, made.Steps)
		}
		setForwarding(t, h, false)
		nft(tt.ns, "delete table ip x")
	}
}

func setForwarding(t *testing.T, h *bed.Host, on bool) {
	t.Helper()
	if err := h.NS.Do(func() error { return ethtool.SetFeature(h.Wire, plan.UDPForwarding, on) }); err != nil {
		t.Fatal(err)
	}
}
