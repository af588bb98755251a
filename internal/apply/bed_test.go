// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/plan"
)

// bed is a place to change settings in: two unnamed network namespaces with
// a veth pair between them and a bridge in the first.
type bed struct {
	t      *testing.T
	a, b   *netns.Handle
	cookie map[*netns.Handle]uint64
	state  string
}

func newBed(t *testing.T) *bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: creates network namespaces and writes their settings")
	}
	if _, err := exec.LookPath("ethtool"); err != nil {
		t.Skip("needs ethtool: compares all offloads before and after")
	}
	b := &bed{t: t, cookie: make(map[*netns.Handle]uint64), state: t.TempDir()}
	b.a, b.b = b.netns(), b.netns()
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: "va", NumRxQueues: 2, NumTxQueues: 2},
		PeerName:      "vb",
		PeerNamespace: netlink.NsFd(b.b.FD()),
	}
	b.add(b.a, veth)
	b.add(b.a, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "d0"}})
	return b
}

func (b *bed) netns() *netns.Handle {
	b.t.Helper()
	h, err := netns.New()
	b.must(err)
	b.t.Cleanup(func() { h.Close() })
	b.cookie[h], err = h.Cookie()
	b.must(err)
	return h
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) add(h *netns.Handle, l netlink.Link) plan.Target {
	b.t.Helper()
	b.must(h.Do(func() error { return netlink.LinkAdd(l) }))
	return b.target(h, l.Attrs().Name)
}

func (b *bed) del(h *netns.Handle, name string) {
	b.t.Helper()
	b.must(h.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	}))
}

func (b *bed) target(h *netns.Handle, name string) plan.Target {
	b.t.Helper()
	t := plan.Target{NetnsCookie: b.cookie[h], Name: name}
	b.must(h.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			t.Ifindex = l.Attrs().Index
		}
		return err
	}))
	return t
}

// ByCookie lets the bed stand for a daemon that holds its namespaces.
func (b *bed) ByCookie(cookie uint64) (*netns.Handle, error) {
	for h, c := range b.cookie {
		if c == cookie {
			return h, nil
		}
	}
	return nil, ErrNoNamespace
}

func (b *bed) open() *Dir {
	b.t.Helper()
	d, err := Open(b.state, b.cookie[b.a])
	b.must(err)
	b.t.Cleanup(func() { d.Close() })
	return d
}

func (b *bed) lock() *Locked {
	b.t.Helper()
	l, err := b.open().Lock()
	b.must(err)
	b.t.Cleanup(func() { l.Unlock() })
	return l
}

// steps are some of each kind, over both namespaces. The offload comes first
// of its device: threaded NAPI on a veth needs it.
func (b *bed) steps() []plan.Step {
	va, vb, d0 := b.target(b.a, "va"), b.target(b.b, "vb"), b.target(b.a, "d0")
	whole := plan.Target{NetnsCookie: b.cookie[b.b]}
	step := func(t plan.Target, k plan.Kind, attr, want string) plan.Step {
		return plan.Step{Setting: plan.Setting{Target: t, Kind: k, Attr: attr}, By: plan.ByPipeline, Want: want, Reason: "test"}
	}
	return []plan.Step{
		step(va, plan.SysfsAttr, "queues/rx-0/rps_cpus", "2"),
		step(va, plan.SysfsAttr, "queues/rx-1/rps_cpus", "1"),
		step(vb, plan.SysfsAttr, "queues/rx-0/rps_cpus", "3"),
		step(vb, plan.EthtoolFeature, "rx-udp-gro-forwarding", "on"),
		step(d0, plan.SysfsAttr, "gro_flush_timeout", "20000"),
		step(d0, plan.EthtoolFeature, "rx-gro", "off"),
		step(whole, plan.Sysctl, "net/ipv4/tcp_rmem", "4096 131073 6291457"),
	}
}

// other returns the steps with further values.
func (b *bed) other() []plan.Step {
	steps := b.steps()
	steps[0].Want, steps[2].Want, steps[4].Want = "3", "1", "40000"
	return slices.Concat(steps[:3], steps[4:5])
}

// snapshot reads the settings without the code under test, and with them the
// neighbours that a wrong write could hit.
func (b *bed) snapshot() map[string]string {
	b.t.Helper()
	snap := make(map[string]string)
	for ns, h := range map[string]*netns.Handle{"a": b.a, "b": b.b} {
		root, err := h.Sysfs()
		b.must(err)
		defer root.Close()
		b.must(h.Do(func() error {
			links, err := netlink.LinkList()
			if err != nil {
				return err
			}
			for _, l := range links {
				name := l.Attrs().Name
				for _, f := range []string{"queues/rx-0/rps_cpus", "queues/rx-1/rps_cpus", "queues/rx-0/rps_flow_cnt", "threaded", "gro_flush_timeout", "napi_defer_hard_irqs", "mtu", "tx_queue_len"} {
					if v, err := root.ReadFile("class/net/" + name + "/" + f); err == nil {
						snap[ns+" "+name+" "+f] = strings.TrimSpace(string(v))
					}
				}
				out, err := exec.Command("ethtool", "-k", name).Output()
				if err != nil {
					return fmt.Errorf("ethtool -k %s: %w", name, err)
				}
				for line := range strings.Lines(string(out)) {
					if feature, state, ok := strings.Cut(line, ":"); ok {
						snap[ns+" "+name+" "+strings.TrimSpace(feature)] = strings.TrimSpace(state)
					}
				}
			}
			for _, f := range []string{"net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem", "net/ipv4/ip_forward"} {
				v, err := os.ReadFile("/proc/sys/" + f)
				if err != nil {
					return err
				}
				snap[ns+" "+f] = strings.Join(strings.Fields(string(v)), " ")
			}
			return nil
		}))
	}
	if len(snap) < 100 {
		b.t.Fatalf("only %d values in the snapshot", len(snap))
	}
	return snap
}

func (b *bed) wantSnapshot(want map[string]string) {
	b.t.Helper()
	got := b.snapshot()
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if got[k] != want[k] {
			b.t.Errorf("%s is %q, want %q", k, got[k], want[k])
		}
	}
	if len(got) != len(want) {
		b.t.Errorf("%d values, want %d", len(got), len(want))
	}
}

// set writes a device's attribute as an administrator would.
func (b *bed) set(h *netns.Handle, attr, value string) {
	b.t.Helper()
	root, err := h.Sysfs()
	b.must(err)
	defer root.Close()
	b.must(writeAttr(root, "class/net/"+attr, value))
}

func (b *bed) get(h *netns.Handle, attr string) string {
	b.t.Helper()
	root, err := h.Sysfs()
	b.must(err)
	defer root.Close()
	v, err := netns.ReadAttr(root, "class/net/"+attr)
	b.must(err)
	return v
}

// wantNoJournal asserts that nothing is left to restore.
func (b *bed) wantNoJournal() {
	b.t.Helper()
	d, err := Open(b.state, b.cookie[b.a])
	b.must(err)
	defer d.Close()
	entries, err := d.Entries()
	if err != nil || len(entries) > 0 {
		b.t.Errorf("journal still holds %+v, %v", entries, err)
	}
}

// outcome returns the only result for the setting's device and attribute.
func outcome(t *testing.T, rep Report, s plan.Setting) Result {
	t.Helper()
	for _, r := range rep.Results {
		if r.Setting == s {
			return r
		}
	}
	t.Fatalf("%s is not in the report %+v", s, rep)
	return Result{}
}

func wantOutcomes(t *testing.T, rep Report, o Outcome, n int) {
	t.Helper()
	if rep.Count(o) != n || len(rep.Results) != n {
		t.Fatalf("want %d times %q, got %v", n, o, rep.Results)
	}
}

var errTest = errors.New("test")
