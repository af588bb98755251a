// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/residue"
	"github.com/overlane/overlane/test/speed"
)

// witness is a foreign program. It counts packets by whether a field of struct
// __sk_buff is set when they come to it.
type witness struct {
	t    *testing.T
	seen *ebpf.Map
	prog *ebpf.Program
}

// What such a program says of each packet.
const (
	goOn  = -1 // TCX_NEXT, TC_ACT_UNSPEC
	taken = 0  // TCX_PASS: no other program sees it
)

// Where fields are in struct __sk_buff.
const (
	tcIndex = 11 * 4
	hash    = 17 * 4
)

// newWitness makes one as a dataplane has it.
func newWitness(t *testing.T, name string, verdict int32) *witness {
	t.Helper()
	return newWitnessOf(t, tcIndex, name, verdict)
}

func newWitnessOf(t *testing.T, field int16, name string, verdict int32) *witness {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, field, asm.Word),
		asm.Mov.Imm(asm.R7, 0),
		asm.JEq.Imm(asm.R6, 0, "count"),
		asm.Mov.Imm(asm.R7, 1),
		asm.StoreMem(asm.RFP, -4, asm.R7, asm.Word).WithSymbol("count"),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, verdict).WithSymbol("out"),
		asm.Return(),
	}})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return &witness{t: t, seen: m, prog: p}
}

// counts returns the packets so far: those without the field, and those with it.
func (w *witness) counts() (without, with uint64) {
	w.t.Helper()
	must(w.t, w.seen.Lookup(uint32(0), &without))
	must(w.t, w.seen.Lookup(uint32(1), &with))
	return without, with
}

// attach puts it on a tcx hook, until it is closed or the test ends.
func (w *witness) attach(ns *netns.Handle, dev string, at ebpf.AttachType) link.Link {
	w.t.Helper()
	var l link.Link
	must(w.t, ns.Do(func() error {
		ifi, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		l, err = link.AttachTCX(link.TCXOptions{Interface: ifi.Index, Program: w.prog, Attach: at})
		return err
	}))
	w.t.Cleanup(func() { l.Close() })
	return l
}

// filter puts it on a device's egress as a filter, for the test's time.
func (w *witness) filter(ns *netns.Handle, dev string) {
	w.t.Helper()
	clsact := func(index int) *netlink.Clsact {
		return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	}
	var index int
	must(w.t, ns.Do(func() error {
		ifi, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		index = ifi.Index
		if err := netlink.QdiscAdd(clsact(index)); err != nil {
			return err
		}
		return netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
			Fd:          w.prog.FD(), Name: "calico_tc", DirectAction: true,
		})
	}))
	w.t.Cleanup(func() {
		must(w.t, ns.Do(func() error { return netlink.QdiscDel(clsact(index)) }))
	})
}

// on lists the programs at a tcx hook, in order.
func on(t *testing.T, ns *netns.Handle, dev string, at ebpf.AttachType) (names []string) {
	t.Helper()
	must(t, ns.Do(func() error {
		ifi, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		res, err := link.QueryPrograms(link.QueryOptions{Target: ifi.Index, Attach: at})
		if err != nil {
			return err
		}
		for _, id := range res.Programs {
			p, err := ebpf.NewProgramFromID(id.ID)
			if err != nil {
				return err
			}
			defer p.Close()
			info, err := p.Info()
			if err != nil {
				return err
			}
			names = append(names, info.Name)
		}
		return nil
	}))
	return names
}

// A foreign dataplane sees no packet otherwise than without us: wherever on the way its
// programs are, none of ours is on it. Everything that reports says whose it is.
func TestForeignDataplaneIsLeftAlone(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, tc := range []struct {
		name, program, owner string
		attach               func(*witness, *bed.Host)
	}{
		{"on the NIC, and takes what comes", "cil_from_netdev", "Cilium", func(w *witness, rx *bed.Host) { w.attach(rx.NS, rx.Wire, ebpf.AttachTCXIngress) }},
		{"on the tunnel", "cil_from_overla", "Cilium", func(w *witness, rx *bed.Host) { w.attach(rx.Overlay, bed.Tunnel, ebpf.AttachTCXIngress) }},
		{"a filter at one of the pods", "calico_tc_main", "Calico", func(w *witness, rx *bed.Host) { w.filter(rx.Overlay, rx.Pods[1].HostEnd) }},
	} {
		if !turn() {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			rig.NeedCores(t, 2)
			b := rig.Lab(t, bed.Options{Pods: 2})
			rx := b.Receiver()
			verdict := int32(goOn)
			if strings.Contains(tc.name, "takes") {
				verdict = taken
			}
			w := newWitness(t, tc.program, verdict)
			tc.attach(w, rx)
			check(t, b)
			before := settings(t, b)

			d := rig.Start(t, rig.Spec{NS: rx.NS, Config: forced + "aggregate: forced\n"})
			l := rig.StartLoad(t, b, 4)
			saysManual(t, d, bed.Tunnel, tc.owner, tc.program)
			saysManual(t, d, rx.Wire, tc.owner, tc.program)
			rig.Until(t, "pipeline and aggregation say that they leave it alone", func() (bool, string) {
				st := d.Status()
				joins := st.Mechanism("aggregate")
				return st.Mechanism("pipeline").State == control.Manual && joins.State == control.Standby && strings.Contains(joins.Reason, "see the devices"), fmt.Sprintf("%+v", st.Mechanisms)
			})
			l.GoesOn()
			if plain, tagged := w.counts(); tagged != 0 || plain == 0 {
				t.Errorf("the program saw %d packets with a tc_index, and %d without", tagged, plain)
			}
			for _, line := range residue.Diff(before, settings(t, b)) {
				if !strings.Contains(line, " process ") { // the daemon's own
					t.Errorf("beside a foreign dataplane: %s", line)
				}
			}
			if names := on(t, rx.NS, rx.Wire, ebpf.AttachTCXIngress); slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "ol_") }) {
				t.Errorf("on the NIC are %q", names)
			}

			var found struct{ Findings []struct{ What string } }
			must(t, json.Unmarshal([]byte(d.Verb("doctor", "--json").Out), &found))
			if !slices.ContainsFunc(found.Findings, func(f struct{ What string }) bool {
				return strings.Contains(f.What, tc.owner+"'s program "+tc.program) && strings.Contains(f.What, "priority is possible")
			}) {
				t.Errorf("doctor does not say whose it is: %+v", found.Findings)
			}
			var planned plan.Plan
			must(t, json.Unmarshal([]byte(d.Verb("plan", "--json").Out), &planned))
			if !slices.ContainsFunc(planned.Skipped, func(s plan.Skip) bool {
				return s.Target.Name == bed.Tunnel && strings.Contains(s.Reason, tc.owner)
			}) || !planned.Empty() {
				t.Errorf("plan: %+v", planned)
			}
			ends(t, d)
			l.GoesOn()
			orderly(t, l.Stop())
		})
	}
}

// One that comes while the pipeline acts has it taken off once flows have drained, and it comes
// back when the other is gone.
func TestDataplaneThatComesIsMadeWayFor(t *testing.T) {
	b := lab(t, bed.Options{Pods: 2})
	rx, before := b.Receiver(), masks(t, b)
	d, l := start(t, b)
	w := newWitness(t, "cil_from_overla", goOn)
	there := w.attach(rx.Overlay, bed.Tunnel, ebpf.AttachTCXIngress)
	saysManual(t, d, bed.Tunnel, "Cilium", "cil_from_overla")
	rig.Until(t, "masks and programs are gone", func() (bool, string) {
		names := on(t, rx.NS, rx.Wire, ebpf.AttachTCXIngress)
		return masks(t, b) == before && len(names) == 0, fmt.Sprintf("%s %q\n%s", masks(t, b), names, d.Log())
	})
	l.GoesOn() // what was on its way has come
	_, was := w.counts()
	l.GoesOn()
	if plain, tagged := w.counts(); tagged != was || plain == 0 {
		t.Errorf("the program saw %d packets with a tc_index since", tagged-was)
	}
	if names := on(t, rx.Overlay, bed.Tunnel, ebpf.AttachTCXIngress); !slices.Equal(names, []string{"cil_from_overla"}) {
		t.Errorf("on the tunnel are %q", names)
	}
	must(t, there.Close())
	steered := d.Status().Counters.SteeredPackets
	rig.Until(t, "the pipeline acts again", func() (bool, string) {
		st := d.Status()
		return st.Mechanism("pipeline").State == control.Active && st.Counters.SteeredPackets > steered, d.Log()
	})
	l.GoesOn()
	ends(t, d)
	left(t, d, l.Stop())
}

// A program that overlane does not know may stay in front of ours, unless it takes what comes:
// masks would spread flows whose order no program guards.
func TestProgramInFrontThatTakesThePackets(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{})
	rx := b.Receiver()
	newWitness(t, "taker", taken).attach(rx.NS, rx.Wire, ebpf.AttachTCXIngress)
	check(t, b)
	before := masks(t, b)
	l := rig.StartLoad(t, b, 4)
	d := rig.Start(t, rig.Spec{NS: rx.NS, Config: forced})
	rig.Until(t, "status says what takes the packets", func() (bool, string) {
		m := d.Status().Mechanism("pipeline")
		return m.State == control.Standby && strings.Contains(m.Reason, "taker (program") && strings.Contains(m.Reason, rx.Wire), fmt.Sprintf("%+v", m)
	})
	if now := masks(t, b); now != before {
		t.Errorf("masks are %s, were %s", now, before)
	}
	ends(t, d)
	orderly(t, l.Stop())
}

func TestProgramInFrontThatLooksStaysThere(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{})
	rx := b.Receiver()
	w := newWitness(t, "looker", goOn)
	w.attach(rx.NS, rx.Wire, ebpf.AttachTCXIngress)
	check(t, b)
	d, l := start(t, b)
	l.GoesOn()
	if names := on(t, rx.NS, rx.Wire, ebpf.AttachTCXIngress); len(names) != 2 || names[0] != "looker" {
		t.Errorf("on the NIC are %q", names)
	}
	if plain, tagged := w.counts(); tagged != 0 || plain == 0 {
		t.Errorf("in front of ours, the program saw %d packets with a tc_index, and %d without", tagged, plain)
	}
	ends(t, d)
	left(t, d, l.Stop())
}

// What sees packets behind the NIC's stage only has XDP to itself, and whose XDP it is is said.
func TestDispatcherOfLibxdpIsNamed(t *testing.T) {
	speed.Long(t)
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{})
	rx := b.Receiver()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "xdp_dispatcher", Type: ebpf.XDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	must(t, err)
	defer p.Close()
	must(t, rx.NS.Do(func() error {
		ifi, err := net.InterfaceByName(rx.Wire)
		if err != nil {
			return err
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: ifi.Index, Flags: link.XDPDriverMode})
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		return nil
	}))
	check(t, b)
	d := rig.Start(t, rig.Spec{NS: rx.NS, Config: prioritised})
	saysManual(t, d, rx.Wire, "foreign XDP program", "xdp_dispatcher of libxdp", "does not join")
	if r := d.Verb("doctor"); !strings.Contains(r.Out, "xdp_dispatcher of libxdp") {
		t.Errorf("doctor does not say whose it is: %s", r)
	}
	ends(t, d)
}

// Services that change what we go by are found by their name, whatever runs them.
func TestServicesBesideUsAreTold(t *testing.T) {
	b := lab(t, bed.Options{})
	sleep, err := exec.LookPath("sleep")
	must(t, err)
	program, err := os.ReadFile(sleep)
	must(t, err)
	for _, name := range []string{"irqbalance", "tuned"} {
		path := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(path, program, 0o700))
		cmd := exec.Command(path, "600")
		must(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: forced})
	for _, verb := range []string{"status", "doctor"} {
		r := d.Verb(verb)
		for _, words := range []string{"irqbalance", "moves the interrupts of NICs", "tuned", "may write RPS masks"} {
			if !strings.Contains(r.Out, words) {
				t.Errorf("%s does not say %q: %s", verb, words, r)
			}
		}
	}
	ends(t, d)
}
