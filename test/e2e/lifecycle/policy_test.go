// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/patience"
	"github.com/overlane/overlane/test/speed"
)

// promised is after what time no frame passes a new policy by.
var promised = patience.For(100 * time.Millisecond)

// Where policies are planted.
type place int

const (
	atNIC     place = iota // in the namespace of the underlays
	atOverlay              // in that of tunnel and bridge
	inPod
)

// policy is what another program plants on the way between a NIC and a pod.
type policy struct {
	name string
	at   place
	// prepare, plant and uproot are commands, one a line, see scene.words; the first are no
	// policy by themselves. attach plants what takes no command.
	prepare, plant, uproot string
	attach                 func(*scene) (uproot func() error, err error)
	want                   string // of the path's reason; empty: there is no path any more
	// lets: it drops nothing. swaps: but the kernel does while it comes or goes, as for a device
	// whose qdisc changes (dev_deactivate).
	lets, swaps bool
	// seen counts the packets that it has seen; nil: it does not tell.
	seen func(*scene) uint64
	// stays: it cannot be taken away, such as a table of iptables.
	stays bool
	// late: the daemon learns of it in the next second; what has come on the way by then is
	// treated as after the full path.
	late bool
}

// scene is a lab with traffic on the express path, for one policy.
type scene struct {
	t      *testing.T
	b      *bed.Bed
	counts *ebpf.Map
}

func (s *scene) ns(p place) *netns.Handle {
	rx := s.b.Receiver()
	switch p {
	case atNIC:
		return rx.NS
	case atOverlay:
		return rx.Overlay
	}
	return rx.Pods[0].NS
}

// words are what commands call the lab's devices and addresses.
func (s *scene) words() *strings.Replacer {
	rx, tx := s.b.Receiver(), s.b.Sender()
	return strings.NewReplacer("NIC", rx.Wire, "VX", bed.Tunnel, "BR", bed.Bridge, "VE", rx.Pods[0].HostEnd, "POD", bed.PodDev,
		"MAC", net.HardwareAddr(rx.Pods[0].MAC[:]).String(), "FARPOD", net.HardwareAddr(tx.Pods[0].MAC[:]).String(),
		"HERE", rx.IP.String(), "FAR", tx.IP.String())
}

// run runs commands in a namespace, one a line; "put FILE VALUE" writes a setting.
func (s *scene) run(p place, script string) error {
	return s.ns(p).Do(func() error {
		for line := range strings.Lines(s.words().Replace(script)) {
			args := strings.Fields(line)
			if len(args) == 0 {
				continue
			}
			if args[0] == "put" {
				if err := os.WriteFile(args[1], []byte(args[2]), 0); err != nil {
					return err
				}
				continue
			}
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w\n%s", strings.TrimSpace(line), err, out)
			}
		}
		return nil
	})
}

// program counts what it sees, and says the same of each.
func (s *scene) program(spec ebpf.ProgramSpec, verdict int32) (*ebpf.Program, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return nil, err
	}
	s.t.Cleanup(func() { m.Close() })
	s.counts = m
	spec.License = "GPL"
	spec.Instructions = asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, verdict).WithSymbol("out"),
		asm.Return(),
	}
	p, err := ebpf.NewProgram(&spec)
	if err == nil {
		s.t.Cleanup(func() { p.Close() })
	}
	return p, err
}

// counted is what the scene's program has seen.
func counted(s *scene) (n uint64) {
	s.t.Helper()
	must(s.t, s.counts.Lookup(uint32(0), &n))
	return n
}

// attached attaches a program in a namespace.
func (s *scene) attached(p place, spec ebpf.ProgramSpec, verdict int32, how func(*ebpf.Program) (link.Link, error)) (func() error, error) {
	prog, err := s.program(spec, verdict)
	if err != nil {
		return nil, err
	}
	var l link.Link
	err = s.ns(p).Do(func() (err error) {
		l, err = how(prog)
		return err
	})
	if err != nil {
		return nil, err
	}
	return l.Close, nil
}

const (
	tcxNext, tcxDrop  = -1, 2
	nfDrop, xdpDrop   = 0, 1
	skDrop            = 0
	tcDropDirect      = 2
	tbf               = "tc qdisc add dev VE root tbf rate 1gbit burst 1mb latency 50ms"
	noTBF             = "tc qdisc del dev VE root\nip link set VE txqueuelen 0" // the kernel gave it a length
	table             = "nft add table %[1]s t\nnft add chain %[1]s t c { type filter hook %[2]s priority 0 ; policy drop ; }"
	noTable           = "nft delete table %s t"
	countingTable     = "nft add table inet t\nnft add chain inet t c { type filter hook prerouting priority 0 ; }\nnft add rule inet t c udp dport 4789 counter"
	callIPTables      = "put /proc/sys/net/bridge/bridge-nf-call-iptables 1"
	pathFilter        = "put /proc/sys/net/ipv4/conf/NIC/rp_filter "
	isolated, swapped = "bridge link set dev VX isolated %[1]s\nbridge link set dev VE isolated %[1]s", "bridge fdb replace MAC dev %s master static"
)

// tcx has a program at a device's hook.
func tcx(p place, dev string, at ebpf.AttachType, verdict int32) func(*scene) (func() error, error) {
	return func(s *scene) (func() error, error) {
		return s.attached(p, ebpf.ProgramSpec{Type: ebpf.SchedCLS}, verdict, func(prog *ebpf.Program) (link.Link, error) {
			ifi, err := net.InterfaceByName(s.words().Replace(dev))
			if err != nil {
				return nil, err
			}
			return link.AttachTCX(link.TCXOptions{Interface: ifi.Index, Program: prog, Attach: at})
		})
	}
}

// filter has a classic filter with a program at a device's ingress.
func filter(p place, dev string) func(*scene) (func() error, error) {
	return func(s *scene) (func() error, error) {
		prog, err := s.program(ebpf.ProgramSpec{Type: ebpf.SchedCLS}, tcDropDirect)
		if err != nil {
			return nil, err
		}
		var length int
		device(s.t, s.ns(p), s.words().Replace(dev), func(l netlink.Link) error { length = l.Attrs().TxQLen; return nil })
		if err := s.run(p, "tc qdisc add dev "+dev+" clsact"); err != nil {
			return nil, err
		}
		err = s.ns(p).Do(func() error {
			l, err := netlink.LinkByName(s.words().Replace(dev))
			if err != nil {
				return err
			}
			return netlink.FilterAdd(&netlink.BpfFilter{
				FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 1, Protocol: unix.ETH_P_ALL},
				Fd:          prog.FD(), Name: "drop", DirectAction: true,
			})
		})
		// The kernel gave the device a length for its first qdisc.
		uproot := func() error {
			return s.run(p, fmt.Sprintf("tc qdisc del dev %[1]s clsact\nip link set %[1]s txqueuelen %[2]d", dev, length))
		}
		if err != nil {
			return nil, errors.Join(err, uproot())
		}
		return uproot, nil
	}
}

// nftCount is what the counter of countingTable says.
func nftCount(s *scene) (n uint64) {
	s.t.Helper()
	must(s.t, s.ns(atNIC).Do(func() error {
		out, err := exec.Command("nft", "list", "chain", "inet", "t", "c").Output()
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(string(out), "counter packets ")
		_, err = fmt.Sscan(rest, &n)
		return err
	}))
	return n
}

var policies = []policy{
	// In the NIC's namespace, before the tunnel.
	{name: "nft inet prerouting", at: atNIC, plant: fmt.Sprintf(table, "inet", "prerouting"), uproot: fmt.Sprintf(noTable, "inet"), want: "there are rules in chain inet t c"},
	{name: "nft ip input", at: atNIC, plant: fmt.Sprintf(table, "ip", "input"), uproot: fmt.Sprintf(noTable, "ip"), want: "there are rules in chain ip t c"},
	{name: "nft netdev ingress", at: atNIC, plant: fmt.Sprintf(table, "netdev", "ingress device NIC"), uproot: fmt.Sprintf(noTable, "netdev"), want: "chain netdev t c"},
	{name: "nft counter", at: atNIC, plant: countingTable, uproot: fmt.Sprintf(noTable, "inet"), want: "there are rules in chain inet t c", lets: true, seen: nftCount},
	{name: "iptables-legacy raw", at: atNIC, plant: "iptables-legacy -t raw -A PREROUTING -p udp -j DROP", want: "there are rules in the tables: raw", stays: true},
	{name: "BPF netfilter link", at: atNIC, want: "BPF programs are on netfilter hooks", seen: counted, attach: func(s *scene) (func() error, error) {
		return s.attached(atNIC, ebpf.ProgramSpec{Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter}, nfDrop, func(p *ebpf.Program) (link.Link, error) {
			return link.AttachNetfilter(link.NetfilterOptions{Program: p, ProtocolFamily: link.NetfilterProtoIPv4, Hook: link.NetfilterInetPreRouting, Priority: -128})
		})
	}},
	{name: "sk_lookup", at: atNIC, want: "BPF programs choose sockets", seen: counted, attach: func(s *scene) (func() error, error) {
		return s.attached(atNIC, ebpf.ProgramSpec{Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup}, skDrop, func(p *ebpf.Program) (link.Link, error) {
			return link.AttachNetNs(s.ns(atNIC).FD(), p)
		})
	}},
	{name: "tcx on the NIC", at: atNIC, attach: tcx(atNIC, "NIC", ebpf.AttachTCXIngress, tcxDrop), seen: counted, want: "on NIC is foreign"},
	{name: "tcx on the NIC that only looks", at: atNIC, attach: tcx(atNIC, "NIC", ebpf.AttachTCXIngress, tcxNext), seen: counted, want: "on NIC is foreign", lets: true},
	{name: "clsact on the NIC", at: atNIC, attach: filter(atNIC, "NIC"), seen: counted, want: "the foreign qdisc clsact, with its filters, is on NIC"},
	{name: "rp_filter", at: atNIC, prepare: "ip route add blackhole FAR/32", plant: pathFilter + "1", uproot: pathFilter + "0\nip route del blackhole FAR/32", want: "rp_filter 1"},
	{name: "ip rule", at: atNIC, plant: "ip rule add pref 10 lookup local\nip rule del pref 0\nip rule add pref 5 from FAR blackhole", uproot: "ip rule add pref 0 lookup local\nip rule del pref 10\nip rule del pref 5", want: "the routing rule 5"},
	{name: "IPsec", at: atNIC, plant: "ip xfrm policy add src FAR dst HERE dir in action block", uproot: "ip xfrm policy flush", want: "there are IPsec policies here"},
	{name: "macvlan in mode passthru", at: atNIC, plant: "ip link add mv0 link NIC type macvlan mode passthru", uproot: "ip link del mv0", want: "mv0 (macvlan) is on NIC"},
	{name: "the tunnel's address gone", at: atNIC, plant: "ip addr del HERE/24 dev NIC", uproot: "ip addr add HERE/24 dev NIC", want: "is no address of NIC"},
	// Between the tunnel and the pod.
	{name: "nft bridge forward", at: atOverlay, plant: fmt.Sprintf(table, "bridge", "forward"), uproot: fmt.Sprintf(noTable, "bridge"), want: "nftables filters what bridges forward: chain bridge t c"},
	{name: "nft inet forward by br_netfilter", at: atOverlay, prepare: callIPTables, plant: fmt.Sprintf(table, "inet", "forward"), uproot: fmt.Sprintf(noTable, "inet"), want: "br_netfilter hands the frames of BR to iptables"},
	{name: "br_netfilter begins to call", at: atOverlay, prepare: "put /proc/sys/net/bridge/bridge-nf-call-iptables 0\n" + fmt.Sprintf(table, "ip", "forward"), plant: callIPTables, uproot: fmt.Sprintf(noTable, "ip"), want: "br_netfilter hands the frames of BR to iptables"},
	{name: "iptables-legacy forward by br_netfilter", at: atOverlay, prepare: callIPTables, plant: "iptables-legacy -P FORWARD DROP", want: "br_netfilter hands the frames of BR to iptables", stays: true},
	{name: "nft netdev egress", at: atOverlay, plant: fmt.Sprintf(table, "netdev", "egress device VE"), uproot: fmt.Sprintf(noTable, "netdev"), want: "nftables has a hook on VE"},
	{name: "tcx on the tunnel", at: atOverlay, attach: tcx(atOverlay, "VX", ebpf.AttachTCXIngress, tcxDrop), seen: counted, want: "on VX is foreign"},
	{name: "tcx on the port's egress", at: atOverlay, attach: tcx(atOverlay, "VE", ebpf.AttachTCXEgress, tcxDrop), seen: counted, want: "on VE is foreign"},
	{name: "clsact on the tunnel", at: atOverlay, attach: filter(atOverlay, "VX"), seen: counted, want: "the foreign qdisc clsact, with its filters, is on VX"},
	{name: "shaped", at: atOverlay, plant: tbf, uproot: noTBF, want: "the qdisc tbf is on VE", lets: true, swaps: true},
	{name: "VLANs", at: atOverlay, plant: "ip link set BR type bridge vlan_filtering 1\nbridge vlan del dev VE vid 1", uproot: "bridge vlan add dev VE vid 1 pvid untagged\nip link set BR type bridge vlan_filtering 0", want: "filters by VLAN"},
	{name: "isolated ports", at: atOverlay, plant: fmt.Sprintf(isolated, "on"), uproot: fmt.Sprintf(isolated, "off"), want: "are isolated from each other"},
	{name: "port disabled", at: atOverlay, plant: "bridge link set dev VE state 0", uproot: "bridge link set dev VE state 3", want: "is disabled, not forwarding"},
	{name: "port locked", at: atOverlay, plant: "bridge fdb del FARPOD dev VX master\nbridge link set dev VX locked on learning off", uproot: "bridge link set dev VX locked off learning on\nbridge fdb replace FARPOD dev VX master static", want: "is locked"},
	{name: "tunnel down", at: atOverlay, plant: "ip link set VX down", uproot: "ip link set VX up", want: "port VX of BR is disabled"},
	{name: "the pod's address behind another port", at: atOverlay, plant: fmt.Sprintf(swapped, "VX"), uproot: fmt.Sprintf(swapped, "VE"), want: "behind another port"},
	{name: "veth out of the bridge", at: atOverlay, plant: "ip link set VE nomaster", uproot: "ip link set VE master BR\nbridge fdb replace MAC dev VE master static"},
	// At the pod.
	{name: "another address in the pod", at: inPod, plant: "ip link set POD address 02:00:00:00:77:77", uproot: "ip link set POD address MAC", want: "has not learned the pod's address 02:00:00:00:77:77", late: true},
	{name: "XDP on the pod's end", at: inPod, seen: counted, want: "is on the pod's end of VE", late: true, attach: func(s *scene) (func() error, error) {
		return s.attached(inPod, ebpf.ProgramSpec{Type: ebpf.XDP}, xdpDrop, func(p *ebpf.Program) (link.Link, error) {
			ifi, err := net.InterfaceByName(bed.PodDev)
			if err != nil {
				return nil, err
			}
			return link.AttachXDP(link.XDPOptions{Interface: ifi.Index, Program: p, Flags: link.XDPDriverMode})
		})
	}},
}

// put plants the policy and returns how to take it away; nil: it stays. Where kernel or tools
// cannot, the test is skipped.
func (p *policy) put(s *scene) (uproot func() error) {
	s.t.Helper()
	uproot = func() error { return s.run(p.at, p.uproot) }
	var err error
	if p.attach != nil {
		uproot, err = p.attach(s)
	} else {
		err = s.run(p.at, p.plant)
	}
	if err != nil {
		if p.attach == nil {
			_ = s.run(p.at, p.uproot)
		}
		s.t.Skipf("needs a kernel and tools that can do this: %v", err)
	}
	if p.stays {
		return nil
	}
	return uproot
}

// pathOf is the path to the first pod.
func pathOf(t *testing.T, st control.Status) control.ExpressPath {
	t.Helper()
	if len(st.Express) == 0 {
		t.Fatalf("no express path in %+v", st)
	}
	return st.Express[0]
}

// A policy that was there before the daemon sees all, and is what status names.
func TestPoliciesThatAreThereBefore(t *testing.T) {
	turn := speed.Every(t, 3)
	for _, name := range []string{"nft counter", "tcx on the NIC that only looks", "shaped"} {
		if !turn() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			p := policies[slices.IndexFunc(policies, func(p policy) bool { return p.name == name })]
			b := lab(t, bed.Options{})
			s := &scene{t: t, b: b}
			uproot := p.put(s)
			l := rig.StartSteady(t, b, 8)
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: expresses})
			want := s.words().Replace(p.want)
			rig.Until(t, "status names it", func() (bool, string) {
				st := peek(t, d)
				m := expressOf(t, st)
				return len(st.Express) == 1 && strings.Contains(st.Express[0].Reason, want) && strings.Contains(m.Reason, want), fmt.Sprintf("%+v, %+v", m, st.Express)
			})
			p.holds(s, d, l)
			if lands(t, b.Receiver().Pods[0]) {
				t.Error("rx-gro of the pod's end was switched on for a path that is none")
			}
			if n := peek(t, d).Counters.ExpressPackets; n > 0 {
				t.Errorf("%d frames went straight to the pod", n)
			}
			if v := l.Verdict(); v.Reordered+v.Duplicated+v.Stale > 0 {
				t.Errorf("%+v", v)
			}
			must(t, uproot())
			onPath(t, d)
			if v := l.Verdict(); v.Reordered+v.Duplicated+v.Stale > 0 {
				t.Errorf("on the way in: %+v", v)
			}
			ends(t, d)
			l.Stop()
		})
	}
}

// A policy at one pod is none of the other's.
func TestAPolicyAtOnePodLeavesTheOthersPathOpen(t *testing.T) {
	b := lab(t, bed.Options{Pods: 2})
	s := &scene{t: t, b: b}
	l := rig.StartSteady(t, b, 2)
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: expresses})
	onPath(t, d)
	before := time.Now() // the path may be closed before this test runs again
	uproot, err := tcx(atOverlay, "VE", ebpf.AttachTCXEgress, tcxDrop)(s)
	must(t, err)
	other := func() (bool, string) {
		paths := peek(t, d).Express
		for _, w := range paths {
			if w.Pod != b.Receiver().Pods[0].HostEnd && !w.Open {
				t.Fatalf("the other pod's path is closed: %+v", w)
			}
		}
		return slices.ContainsFunc(paths, func(w control.ExpressPath) bool { return !w.Open }), fmt.Sprintf("%+v", paths)
	}
	rig.Until(t, "the pod's path is closed", other)
	// Flows that are leaving it land for as long as they may take: closeAfter of package express.
	if on := lands(t, b.Receiver().Pods[0]); !on && time.Since(before) < 100*time.Millisecond {
		t.Errorf("frames cannot land at the pod's end any more, less than %s after the policy was planted", time.Since(before))
	}
	for begun := l.Sent(); l.Sent() < begun+5000; {
		other()
	}
	was := peek(t, d).Counters // before its datagrams are counted, and again after them
	first, second := l.Flow(0).Received, l.Flow(1).Received
	passes(t, l, 5000)
	got := l.Flow(1).Received - second
	st := peek(t, d)
	if n := l.Flow(0).Received - first; n > 0 {
		t.Errorf("%d datagrams came past it", n)
	}
	express := st.Counters.ExpressPackets - was.ExpressPackets
	if got < 2000 || 10*express < 9*got {
		t.Errorf("%d datagrams came to the other pod, and %d frames went straight there", got, express)
	}
	if m := expressOf(t, st); m.State != control.Active {
		t.Errorf("%+v", m)
	}
	for _, w := range st.Express {
		if first := w.Pod == b.Receiver().Pods[0].HostEnd; w.Open == first || first != strings.Contains(w.Reason, "on "+w.Pod+" is foreign") {
			t.Errorf("status says %+v", w)
		}
	}
	must(t, uproot())
	rig.Until(t, "the path opens again", func() (bool, string) {
		st := peek(t, d)
		return len(st.Express) == 2 && st.Express[0].Open && st.Express[1].Open, fmt.Sprintf("%+v", st.Express)
	})
	l.GoesOn()
	if v := l.Verdict(); v.Reordered > rig.InRing || l.Flow(1).Reordered > 0 {
		t.Errorf("order was broken: %+v", v)
	}
	ends(t, d)
	l.Stop()
}

// beside is a lab with a daemon, where policies come and go, one after the other.
type beside struct {
	b *bed.Bed
	d *rig.Daemon
}

func (in *beside) start(t *testing.T) {
	t.Helper()
	in.d = rig.Start(t, rig.Spec{NS: in.b.Receiver().NS, Config: expresses})
}

// A policy that is planted while frames pass it by is passed by no more: by what it drops, by
// what it counts and by what status says. When it is gone, the path opens again.
func TestPoliciesPlantedDuringTraffic(t *testing.T) {
	speed.Turn(t)
	topologies := []bed.Topology{bed.Nested, bed.Bridged}
	each := func(alone bool, in func(*testing.T, int) beside) {
		turn := speed.Every(t, 4)
		for i, p := range policies {
			if alone == (p.prepare != "" || p.stays) {
				if !turn() {
					continue
				}
				t.Run(p.name, func(t *testing.T) { p.plantedBeside(t, in(t, i/2%2), []int{1, 8}[i%2]) })
			}
		}
	}
	// What leaves its lab as no other is to find it has one of its own, and a daemon that ends there.
	each(true, func(t *testing.T, at int) beside {
		in := beside{b: lab(t, bed.Options{Topology: topologies[at]})}
		in.start(t)
		t.Cleanup(func() { ends(t, in.d) })
		return in
	})
	var shared [2]beside
	for at := range shared { // all of them before there is a daemon, whose programs no check is to miss
		shared[at].b = lab(t, bed.Options{Topology: topologies[at]})
	}
	for at := range shared {
		shared[at].start(t)
	}
	each(false, func(_ *testing.T, at int) beside { return shared[at] })
	for _, in := range shared {
		in.ends(t)
	}
}

// ends ends the daemon while frames go straight to the pod.
func (in *beside) ends(t *testing.T) {
	t.Helper()
	l := rig.StartSteady(t, in.b, 8)
	onPath(t, in.d)
	was := l.Verdict()
	ends(t, in.d)
	l.GoesOn()
	if v := l.Stop(); v.Reordered > was.Reordered+rig.InRing || v.Duplicated+v.Stale > 0 {
		t.Errorf("as the daemon ended: %+v, before %+v", v, was)
	}
}

func (p *policy) plantedBeside(t *testing.T, in beside, flows int) {
	b, d := in.b, in.d
	s := &scene{t: t, b: b}
	if p.prepare != "" {
		must(t, s.run(p.at, p.prepare))
	}
	wire, err := b.WireStats()
	must(t, err)
	l := rig.StartSteady(t, b, flows)
	onPath(t, d)
	first, was := l.Verdict(), peek(t, d).Counters
	if first.Reordered > 0 {
		t.Errorf("on the first way in, %d were late", first.Reordered)
	}

	uproot := p.put(s)
	uprooted := uproot == nil
	t.Cleanup(func() {
		if !uprooted { // for those that come after this one
			_ = uproot()
		}
	})
	if !p.late { // there the pod's end treats them as it treats others
		awaitLeft(t, d, l)
	}
	p.holds(s, d, l)
	out, now := l.Verdict(), peek(t, d).Counters
	left := now.ExpressLeft - was.ExpressLeft
	t.Logf("%d flows: %d late, %d left before the path was seen to be empty", flows, out.Reordered-first.Reordered, left)
	// The counter tells of flows. What one that leaves at once can overtake is what a ring
	// holds, and all leave within one of their gaps: no more than one ring full.
	if late := out.Reordered - first.Reordered; late > rig.InRing || left == 0 && late > 0 {
		t.Errorf("on the way out, %d were late, and %d flows left early", late, left)
	}
	if n := now.ExpressDrops - was.ExpressDrops; n > 0 {
		t.Errorf("%d frames that went straight to the pod found no room there", n)
	}
	if uproot == nil {
		if v := l.Stop(); v.Duplicated+v.Stale > 0 {
			t.Errorf("%+v", v)
		}
		return
	}
	uprooted = true
	must(t, uproot())
	onPath(t, d)
	again := l.Verdict()
	if again.Reordered != out.Reordered {
		t.Errorf("on the way in again, %d were late", again.Reordered-out.Reordered)
	}
	l.GoesOn()
	v := l.Stop()
	if v.Reordered > again.Reordered+rig.InRing || v.Duplicated+v.Stale > 0 {
		t.Errorf("%+v", v)
	}
	if n := lost(t, b, l, v, wire); p.lets && !p.swaps && n > 0 {
		t.Errorf("%d of %d were lost", n, l.Sent())
	}
}

// awaitLeft waits until frames go straight to a pod no more, after a policy was planted just now. A test on a busy
// machine can only tell that they end, not when: it warns.
func awaitLeft(t *testing.T, d *rig.Daemon, l *rig.Load) {
	t.Helper()
	const quiet = 1000 // frames of some flows that all send
	straight := func() uint64 { return peek(t, d).Counters.ExpressPackets }
	planted, polled, was, last := time.Now(), l.Polled(), straight(), time.Duration(0)
	rig.Until(t, "frames go straight to the pod no more", func() (bool, string) {
		come := l.Polled() // before what of them goes straight is asked: the NIC's core may stand still meanwhile
		if now := straight(); now != was {
			was, polled, last = now, l.Polled(), time.Since(planted)
		}
		return come >= polled+quiet, fmt.Sprint(was)
	})
	if last > promised {
		t.Logf("warning: frames went straight to the pod for %s after a policy was planted, %s are promised", last.Round(time.Millisecond), promised)
	}
}

// holds judges a while in which nothing may pass the policy by.
func (p *policy) holds(s *scene, d *rig.Daemon, l *rig.Load) {
	t := s.t
	t.Helper()
	const while = 5000
	count := func() (n uint64) {
		if p.seen != nil {
			n = p.seen(s)
		}
		return n
	}
	was := peek(t, d).Counters
	seen := count()
	// What it has seen by now has arrived, or was dropped: what arrives from now on, it sees.
	passes(t, l, 500)
	from := l.Verdict().Received
	passes(t, l, while)
	got := l.Verdict().Received - from
	seen = count() - seen
	st := peek(t, d)
	switch {
	case !p.lets && got > 0:
		t.Errorf("%d datagrams came past it", got)
	case p.lets && got == 0:
		t.Error("nothing comes any more")
	case p.seen != nil && seen < max(got, while/2):
		t.Errorf("it saw %d packets, and %d came to the pod", seen, got)
	}
	want := s.words().Replace(p.want)
	if p.late {
		rig.Until(t, "status names it", func() (bool, string) {
			w := pathOf(t, peek(t, d))
			return !w.Open && strings.Contains(w.Reason, want), fmt.Sprintf("%+v", w)
		})
		return
	}
	if n := st.Counters.ExpressPackets - was.ExpressPackets; n > 0 {
		t.Errorf("%d frames went straight to the pod", n)
	}
	if p.want == "" {
		// What leads nowhere any more is closed at once, and forgotten with the next scan of the node.
		rig.Until(t, "status knows no path any more", func() (bool, string) {
			paths := peek(t, d).Express
			if slices.ContainsFunc(paths, func(w control.ExpressPath) bool { return w.Open }) {
				t.Fatalf("status says %+v", paths)
			}
			return len(paths) == 0, fmt.Sprintf("%+v", paths)
		})
		return
	}
	if w := pathOf(t, st); w.Open || !strings.Contains(w.Reason, want) {
		t.Errorf("status says %+v, want %q", w, want)
	}
}
