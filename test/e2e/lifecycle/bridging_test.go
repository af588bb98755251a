// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

const skipsUnused = "pipeline: off\nmetrics: off\nmicroflows: {mode: off}\naggregate: off\nbridge-netfilter: skip-unused\n"

// calls are whether the bridges of a namespace call netfilter, for IPv4 and IPv6.
func calls(t *testing.T, ns *netns.Handle) (v string) {
	t.Helper()
	must(t, ns.Do(func() error {
		for _, name := range []string{"iptables", "ip6tables"} {
			b, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-" + name)
			if err != nil {
				return err
			}
			v += strings.TrimSpace(string(b))
		}
		return nil
	}))
	return v
}

func untilCalls(t *testing.T, ns *netns.Handle, want string) {
	t.Helper()
	rig.Until(t, "bridges call netfilter as they should: "+want, func() (bool, string) {
		is := calls(t, ns)
		return is == want, is
	})
}

func bridgingOf(t *testing.T, st control.Status) control.Mechanism {
	t.Helper()
	return mechanismOf(t, st, "bridge-netfilter")
}

// Unused hooks are left out, and are called again where something comes there: from then on it misses no packet.
func TestUnusedHooksAreLeftOutUntilTheyAreUsed(t *testing.T) {
	forwardLink := func(s *scene) (func() error, error) {
		return s.attached(atOverlay, ebpf.ProgramSpec{Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter}, nfDrop, func(p *ebpf.Program) (link.Link, error) {
			return link.AttachNetfilter(link.NetfilterOptions{Program: p, ProtocolFamily: link.NetfilterProtoIPv4, Hook: link.NetfilterInetForward, Priority: -128})
		})
	}
	turn := speed.Every(t, 3)
	for i, tc := range []struct {
		policy
		calls string // with it
	}{
		{policy{name: "nft inet forward", plant: fmt.Sprintf(table, "inet", "forward"), uproot: fmt.Sprintf(noTable, "inet"), want: "there are rules in chain inet t c"}, "11"},
		{policy{name: "nft ip prerouting", plant: fmt.Sprintf(table, "ip", "prerouting"), uproot: fmt.Sprintf(noTable, "ip"), want: "there are rules in chain ip t c"}, "10"},
		{policy{name: "iptables-legacy", plant: "iptables-legacy -P FORWARD DROP", want: "there are rules in the tables: filter", stays: true}, "10"},
		{policy{name: "BPF netfilter link", attach: forwardLink, want: "BPF programs are on netfilter hooks"}, "11"},
		{policy{name: "for others only", plant: fmt.Sprintf(table, "ip6", "forward"), uproot: fmt.Sprintf(noTable, "ip6"), want: "there are rules in chain ip6 t c", lets: true}, "01"},
		{policy{name: "another program wants them called", plant: callIPTables, uproot: callIPTables, want: "left alone: another program has switched it on again", lets: true}, "10"},
	} {
		if !turn() {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			b := lab(t, bed.Options{Topology: []bed.Topology{bed.Nested, bed.Bridged}[i%2]})
			s := &scene{t: t, b: b}
			ns := b.Receiver().Overlay
			if _, err := os.Stat("/proc/sys/net/bridge"); err != nil {
				t.Skip("needs br_netfilter")
			}
			l := rig.StartSteady(t, b, 8)
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: skipsUnused})
			untilCalls(t, ns, "00")
			if m := bridgingOf(t, peek(t, d)); m.State != control.Active {
				t.Errorf("%+v", m)
			}
			l.GoesOn()

			tc.at = atOverlay
			uproot := tc.put(s)
			untilCalls(t, ns, tc.calls)
			passes(t, l, 500) // what is on its way now has arrived
			from := l.Verdict().Received
			passes(t, l, 5000)
			got := l.Verdict().Received - from
			switch {
			case tc.lets && got == 0:
				t.Error("nothing comes any more")
			case !tc.lets && got > 0:
				t.Errorf("%d datagrams came past it", got)
			}
			rig.Until(t, "status tells it", func() (bool, string) {
				m := bridgingOf(t, peek(t, d))
				return strings.Contains(m.Reason, tc.want), fmt.Sprintf("%+v", m)
			})
			ends(t, d)
			d.GoneBoth()
			d.NothingLeft()
			if is := calls(t, ns); is != "11" {
				t.Errorf("bridges call netfilter as %s after the end", is)
			}
			if uproot != nil {
				must(t, uproot())
				l.GoesOn()
			}
			if v := l.Stop(); v.Reordered+v.Duplicated+v.Stale > 0 {
				t.Errorf("%+v", v)
			}
		})
	}
}

// However it ends, bridges call netfilter again.
func TestUnusedHooksAreCalledAgainInTheEnd(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, tc := range []struct {
		name string
		end  func(*testing.T, *rig.Daemon, *netns.Handle)
	}{
		{"killed", func(t *testing.T, d *rig.Daemon, _ *netns.Handle) {
			d.Signal(unix.SIGKILL)
			killed(t, d.Exited())
		}},
		{"off", func(t *testing.T, d *rig.Daemon, _ *netns.Handle) {
			r := d.Verb("off")
			if n := strings.Count(r.Out, "bridge-nf-call-"); r.Code != 0 || n != 2 {
				t.Errorf("exit code %d, and %d of 2 settings in\n%s%s", r.Code, n, r.Out, r.Err)
			}
		}},
		{"configured to be kept", func(t *testing.T, d *rig.Daemon, ns *netns.Handle) {
			d.Reload(strings.Replace(skipsUnused, "skip-unused", "keep", 1))
			untilCalls(t, ns, "11")
			if m := bridgingOf(t, peek(t, d)); m.State != control.Off {
				t.Errorf("%+v", m)
			}
			ends(t, d)
		}},
	} {
		if !turn() {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			b := lab(t, bed.Options{})
			ns := b.Receiver().Overlay
			if _, err := os.Stat("/proc/sys/net/bridge"); err != nil {
				t.Skip("needs br_netfilter")
			}
			l := rig.StartSteady(t, b, 1)
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: skipsUnused})
			untilCalls(t, ns, "00")
			tc.end(t, d, ns)
			d.GoneBoth()
			d.NothingLeft()
			if is := calls(t, ns); is != "11" {
				t.Errorf("bridges call netfilter as %s", is)
			}
			l.Stop()
		})
	}
}
