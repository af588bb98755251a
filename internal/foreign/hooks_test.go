// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"os"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/netns"
)

func TestProductsAreKnownByTheirPrograms(t *testing.T) {
	for name, want := range map[string]Owner{
		"cil_from_netdev": Cilium, "cil_xdp_entry": Cilium, "cali_tc_preambl": Calico, "calico_tc_main": Calico,
		"xdp_dispatcher": LibXDP, "ol_underlay_in": Unknown, "": Unknown, "calibrate": Unknown, "from_cil_": Unknown,
	} {
		if got := OwnerOf(name); got != want {
			t.Errorf("%q is said to be of %q, want %q", name, got, want)
		}
	}
	if LibXDP.Dataplane() || Unknown.Dataplane() || !Cilium.Dataplane() || !Calico.Dataplane() {
		t.Error("the program that decides where packets go is not as it should be")
	}
}

func TestServicesAreKnownByTheirProcesses(t *testing.T) {
	proc := fstest.MapFS{
		"1/comm":    {Data: []byte("systemd\n")},
		"77/comm":   {Data: []byte("irqbalance\n")},
		"78/comm":   {Data: []byte("tuned\n")},
		"79/comm":   {Data: []byte("tuned-adm\n")},
		"80/status": {Data: []byte("no name\n")},
		"self/comm": {Data: []byte("irqbalance\n")},
	}
	var got []string
	for _, s := range Services(proc) {
		if s.Means == "" {
			t.Errorf("%s means nothing", s.Name)
		}
		got = append(got, s.Name+" "+s.PID)
	}
	if want := []string{"irqbalance 77", "tuned 78"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// Programs are found at each hook, in the order in which packets meet them.
func TestHooksOfARealDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace and loads BPF programs")
	}
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	load := func(name string) *ebpf.Program {
		t.Helper()
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	front, from, to := load("cil_front"), load("calico_filter"), load("mine")
	err = h.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		index := lo.Attrs().Index
		for _, at := range []struct {
			p  *ebpf.Program
			at ebpf.AttachType
		}{{front, ebpf.AttachTCXIngress}, {to, ebpf.AttachTCXEgress}} {
			l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: at.p, Attach: at.at})
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
		}
		if err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}); err != nil {
			return err
		}
		attrs := netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: 3, Priority: 1}
		if err := netlink.FilterAdd(&netlink.BpfFilter{FilterAttrs: attrs, Fd: from.FD(), Name: "whatever", DirectAction: true}); err != nil {
			return err
		}
		var l Scanner
		all, err := l.Scan([]int{index, 4711})
		if err != nil {
			return err
		}
		if is, err := l.dataplane(); err != nil || !is {
			t.Errorf("a dataplane is loaded: %t, %v", is, err)
		}
		hooks := all[index]
		var got []string
		for _, p := range hooks.Programs {
			got = append(got, p.Name+" at "+p.Hook)
		}
		if want := []string{"cil_front at tcx ingress", "calico_filter at tc filter ingress", "mine at tcx egress"}; !slices.Equal(got, want) {
			t.Errorf("programs are %q, want %q", got, want)
		}
		if len(hooks.Filters) > 0 {
			t.Errorf("other filters are %q, there are none", hooks.Filters)
		}
		if p, ok := hooks.Dataplane(); !ok || p.Owner() != Cilium {
			t.Errorf("the first to decide is %+v, %t", p, ok)
		}
		if h := all[4711]; len(h.Programs)+len(h.Filters) != 0 {
			t.Errorf("a device that is not there has %+v", h)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
