// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
	"github.com/overlane/overlane/internal/shell"
)

// Passed is a device that joined datagrams pass, on its way in, out, or both.
type Passed struct {
	Ifindex int
	Name    string
	In, Out bool
}

// Onlooker is what would tell joined datagrams from single ones.
type Onlooker struct {
	What string     // empty: there is none
	See  shell.Line // the command that shows it
}

// String is a sentence, empty if there is none.
func (o Onlooker) String() string { return shell.See(o.What, o.See) }

// Places are the network namespaces that joined datagrams come through. Datagrams that GRO has joined
// pass as one packet what is between the NIC and the socket: what counts packets, or checks their
// length, sees that. It is a reason not to join them.
//
// Nothing of a namespace is held open, for which reason one that ends is not kept alive: what was read
// is remembered, and is read again when it may have changed. That takes a file or two, a question to
// nftables and some to rtnetlink for each namespace (BenchmarkPlaces).
type Places struct {
	own   func(progID uint32) bool
	buf   []byte
	known map[uint64]*place
	bpf   bpfLinks
	// programs are BPF programs at hooks of netfilter, in whatever namespace.
	programs int
}

// place is what is remembered of a namespace.
type place struct {
	gen    uint32 // of nftables
	bound  bool   // some of its chains are bound to devices
	passes passes
	rules  ruled              // what they say
	tables map[string]xtKnown // of legacy iptables
}

// passes are what decides which rules datagrams meet, and what of them is the same.
type passes struct {
	devs  []Passed
	sends bool // they pass the rules for what the host sends, inside of another packet
	ports []uint16
}

type xtKnown struct {
	xtTable
	read time.Time
	seen ruled
}

// tablesFor is how long a legacy table of the same size and shape counts as the same: the kernel tells
// of no change, and to read one with tens of thousands of rules takes milliseconds.
const tablesFor = 5 * time.Second

// NewPlaces knows none. own reports whether a BPF program is overlane's.
func NewPlaces(own func(progID uint32) bool) *Places {
	return &Places{own: own, buf: make([]byte, 1<<16), known: map[uint64]*place{}}
}

// Begin checks what is no namespace's, before a scan of each.
func (p *Places) Begin() error {
	links, _, err := p.bpf.count()
	p.programs = links.netfilter()
	return err
}

// Keep forgets all others.
func (p *Places) Keep(needed func(cookie uint64) bool) {
	maps.DeleteFunc(p.known, func(cookie uint64, _ *place) bool { return !needed(cookie) })
}

// Scan says what in the namespace that the calling thread is in would tell joined datagrams from single
// ones, and where they go on.
func (p *Places) Scan(cookie uint64, in Passage) (o Onlooker, a Around, err error) {
	c, err := nlsock.Dial(unix.NETLINK_ROUTE, p.buf)
	if err != nil {
		return o, a, err
	}
	defer c.Close()
	w := &Watcher{rtnl: c, own: p.own}
	links, err := w.links()
	if err != nil {
		return o, a, err
	}
	a = around(in, links, forwards)
	if len(a.Devs) == 0 {
		return o, a, nil // they do not come here
	}
	k := p.known[cookie]
	if k == nil {
		k = &place{tables: map[string]xtKnown{}}
		p.known[cookie] = k
	}
	now := passes{a.Devs, a.Sends, in.Ports}
	if k.passes.sends != now.sends || !slices.Equal(k.passes.ports, now.ports) {
		k.gen = 0
		clear(k.tables)
	} else if k.bound && !slices.Equal(k.passes.devs, now.devs) {
		k.gen = 0
	}
	k.passes = now
	bridged := slices.ContainsFunc(a.Devs, func(d Passed) bool { return links[d.Ifindex].Kind == "bridge" })
	for _, check := range []func() (Onlooker, error){
		k.nftables,
		k.legacy,
		k.copies,
		func() (Onlooker, error) { return p.netfilter(bridged) },
		k.sockets,
		func() (Onlooker, error) { return p.devices(w, links, a.Devs) },
	} {
		if o, err = check(); o.What != "" || err != nil {
			return o, a, err
		}
	}
	return o, a, nil
}

// nftables reads the rules anew when their generation is another one.
func (k *place) nftables() (o Onlooker, err error) {
	if there, err := module(&readings{}, "nf_tables"); !there || err != nil {
		return o, err
	}
	c, err := nlsock.Dial(unix.NETLINK_NETFILTER, make([]byte, 1<<15))
	if err != nil {
		return o, err
	}
	n := nftables{c: c}
	defer n.close()
	gen, err := n.generation()
	if err != nil || gen == k.gen {
		return k.rules.Onlooker, err
	}
	r, err := n.rules(k.passes)
	if err != nil {
		return o, err
	}
	if err := r.readQuotas(); err != nil {
		return o, err
	}
	k.gen, k.rules = gen, r.seen(k.passes)
	k.bound = slices.ContainsFunc(r.Base, func(c Chain) bool { return c.Devices != nil })
	return k.rules.Onlooker, nil
}

// copies says which rule copies packets to a program. Where none gets them the kernel makes no copy.
func (k *place) copies() (o Onlooker, err error) {
	all := []map[uint16]Onlooker{k.rules.copies}
	for _, id := range slices.Sorted(maps.Keys(k.tables)) {
		all = append(all, k.tables[id].seen.copies)
	}
	if !slices.ContainsFunc(all, func(m map[uint16]Onlooker) bool { return len(m) > 0 }) {
		return o, nil
	}
	taken, err := lines("/proc/thread-self/net/netfilter/nfnetlink_log")
	if err != nil {
		return o, fmt.Errorf("read which programs get copies of packets: %w", err)
	}
	for _, line := range taken {
		group, _, _ := strings.Cut(line, " ") // group, port of the program, ...
		n, err := strconv.ParseUint(group, 10, 16)
		if err != nil {
			return o, fmt.Errorf("/proc/net/netfilter/nfnetlink_log has a line of another form: %q: %w", line, err)
		}
		for _, m := range all {
			if o, copied := m[uint16(n)]; copied {
				return o, nil
			}
		}
	}
	return o, nil
}

// legacy reads the tables that there are: to ask for others would make them.
func (k *place) legacy() (o Onlooker, err error) {
	here := map[string]bool{}
	for _, f := range xtFamilies {
		names, err := lines(f.names)
		if err != nil {
			return o, err
		}
		if len(names) == 0 {
			continue
		}
		fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return o, fmt.Errorf("open a socket to ask for iptables: %w", err)
		}
		for _, name := range names {
			id := fmt.Sprint(f.family, name)
			here[id] = true
			known, err := f.read(fd, name, k.tables[id], k.passes)
			if err != nil {
				return o, errors.Join(fmt.Errorf("read iptables' table %s: %w", name, err), unix.Close(fd))
			}
			k.tables[id] = known
		}
		if err := unix.Close(fd); err != nil {
			return o, err
		}
	}
	maps.DeleteFunc(k.tables, func(id string, _ xtKnown) bool { return !here[id] })
	for _, id := range slices.Sorted(maps.Keys(k.tables)) {
		if seen := k.tables[id].seen; seen.What != "" {
			return seen.Onlooker, nil
		}
	}
	return o, nil
}

func (f xtFamily) read(fd int, name string, known xtKnown, by passes) (xtKnown, error) {
	t, err := xtInfo(fd, f, name)
	if err != nil {
		return known, err
	}
	if t == known.xtTable && time.Since(known.read) < tablesFor {
		return known, nil
	}
	b, err := xtEntries(fd, f, t)
	if errors.Is(err, unix.EAGAIN) { // it was replaced meanwhile
		if t, err = xtInfo(fd, f, name); err == nil {
			b, err = xtEntries(fd, f, t)
		}
	}
	if err != nil {
		return known, err
	}
	r := Rules{Rules: map[ChainKey][]PacketRule{}}
	if err := f.parse(t, b, &r); err != nil {
		return known, err
	}
	if err := r.readQuotas(); err != nil {
		return known, err
	}
	return xtKnown{t, time.Now(), r.seen(by)}, nil
}

// mostServices is most for IPVS, of which a node of a large cluster has ten thousand services.
const mostServices = 1 << 20

// netfilter checks what has no rules that can be read.
func (p *Places) netfilter(bridged bool) (o Onlooker, err error) {
	if p.programs > 0 {
		return Onlooker{"BPF programs are on netfilter hooks", shell.Command("bpftool net")}, nil
	}
	if bridged {
		m, err := ebtables()
		if err != nil || m != "" {
			return Onlooker{What: legacyEbtables(m)}, err
		}
	}
	services, err := first("/proc/thread-self/net/ip_vs", mostServices)
	if errors.Is(err, errLong) {
		return Onlooker{"IPVS has more services than are looked through", shell.Command("ipvsadm -L")}, nil
	}
	if s := onePacket(services); s != "" {
		return Onlooker{s, shell.Command("ipvsadm -L")}, err
	}
	return o, err
}

// onePacket says whether IPVS chooses a server anew for each packet (ipvsadm --ops).
func onePacket(services []string) string {
	for _, l := range services {
		if f := strings.Fields(l); len(f) > 2 && f[0] == "UDP" && slices.Contains(f[2:], "ops") {
			return "IPVS chooses a server anew for each packet of " + f[1] + " (ops)"
		}
	}
	return ""
}

// sockets checks those that get packets as they pass.
func (k *place) sockets() (o Onlooker, err error) {
	var list []Socket
	for _, s := range []struct {
		path  string
		parse func(string) (Socket, bool, error)
	}{
		{"/proc/thread-self/net/raw", parseRaw}, {"/proc/thread-self/net/raw6", parseRaw},
		{"/proc/thread-self/net/packet", parsePacket},
	} {
		sockets, err := lines(s.path)
		if errors.Is(err, errLong) {
			return Onlooker{"there are more raw or packet sockets than are looked through", shell.Command("ss -w0aep")}, nil
		}
		if err != nil {
			return o, err
		}
		for _, line := range sockets[min(1, len(sockets)):] { // but for the head
			socket, ok, err := s.parse(line)
			if err != nil {
				return o, err
			}
			if ok {
				list = append(list, socket)
			}
		}
	}
	if slices.ContainsFunc(list, func(s Socket) bool { return s.Kind == "packet" }) {
		if err := readFilters(list); err != nil {
			return o, err
		}
	}
	return seenBy(list, k.passes.devs), nil
}

// devices checks tc and BPF programs. A device that has gone meanwhile has none.
func (p *Places) devices(w *Watcher, links map[int]linkInfo, devs []Passed) (o Onlooker, err error) {
	ingress, err := w.filters()
	if err != nil {
		return o, err
	}
	for _, d := range devs {
		l, ok := links[d.Ifindex]
		if !ok {
			continue
		}
		o, err := p.device(w, l, d, ingress[d.Ifindex])
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
			continue
		}
		if o.What != "" || err != nil {
			return o, err
		}
	}
	return o, nil
}

func (p *Places) device(w *Watcher, l linkInfo, d Passed, ingress string) (o Onlooker, err error) {
	if l.generic != 0 && !p.own(l.generic) {
		return Onlooker{fmt.Sprintf("XDP program %d is on %s in generic mode, behind GRO", l.generic, d.Name), shell.Command("bpftool prog show id %s", l.generic)}, nil
	}
	if o, err := machine(l, d); o.What != "" || err != nil {
		return o, err
	}
	if o, err := trafficControl(w.rtnl, d, l.Qdisc, ingress); o.What != "" || err != nil {
		return o, err
	}
	var hooks []ebpf.AttachType
	if d.In {
		hooks = append(hooks, ebpf.AttachTCXIngress)
	}
	if d.Out {
		hooks = append(hooks, ebpf.AttachTCXEgress)
	}
	programs, err := w.foreign(&readings{}, d.Ifindex, hooks...)
	if err != nil {
		return o, fmt.Errorf("list the tc programs on %s: %w", d.Name, err)
	}
	if len(programs) > 0 {
		return Onlooker{fmt.Sprintf("tc program %d, which is not overlane's, is on %s and may tell joined packets", programs[0], d.Name), shell.Command("bpftool prog show id %s", programs[0])}, nil
	}
	return o, nil
}
