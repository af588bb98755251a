// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bed is a namespace with a veth pair a, b in it.
type bed struct {
	ns    *namespace
	scope Scope
	dir   string
}

func newBed(t *testing.T) *bed {
	t.Helper()
	needRoot(t)
	made := make(chan *namespace)
	go func() {
		runtime.LockOSThread()
		var ns *namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("unshare: %v", err)
		} else if ns, err = openNamespace("/proc/thread-self/ns/net"); err != nil {
			t.Error(err)
		}
		made <- ns
	}()
	ns := <-made
	if ns == nil {
		t.FailNow()
	}
	t.Cleanup(func() { ns.file.Close() })
	b := &bed{ns: ns, dir: t.TempDir()}
	b.scope = Scope{Namespaces: []string{FD(int(ns.file.Fd()))}, Dirs: []string{b.dir}}
	b.in(t, func() error {
		pair := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "b"}
		pair.Name, pair.NumTxQueues, pair.NumRxQueues = "a", 2, 2
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		for _, name := range []string{"a", "b"} {
			if err := netlink.LinkSetUp(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
				return err
			}
		}
		return nil
	})
	return b
}

func (b *bed) in(t *testing.T, fn func() error) {
	t.Helper()
	if err := b.ns.do(fn); err != nil {
		t.Fatal(err)
	}
}

// onA runs fn in the namespace with device a.
func (b *bed) onA(t *testing.T, fn func(netlink.Link) error) {
	t.Helper()
	b.in(t, func() error {
		a, err := netlink.LinkByName("a")
		if err != nil {
			return err
		}
		return fn(a)
	})
}

// writeSys writes to a file of device a in the namespace's sysfs.
func (b *bed) writeSys(t *testing.T, file, value string) {
	t.Helper()
	b.in(t, func() error {
		root, err := mountSysfsWritable()
		if err != nil {
			return err
		}
		defer root.Close()
		f, err := root.OpenFile("class/net/a/"+file, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteString(value)
		return err
	})
}

func mountSysfsWritable() (*os.Root, error) {
	fsfd, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return nil, err
	}
	mfd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(mfd)
	return os.OpenRoot(fmt.Sprintf("/proc/thread-self/fd/%d", mfd))
}

func pass(t *testing.T, name string, typ ebpf.ProgramType, attach ebpf.AttachType) *ebpf.Program {
	t.Helper()
	verdict := int32(2) // XDP_PASS
	if typ == ebpf.SchedCLS {
		verdict = -1 // TCX_NEXT, TC_ACT_UNSPEC
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: typ, AttachType: attach, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// plants: each leaves one kind of residue and returns how to remove it.
var plants = []struct {
	name string
	// before makes what may stay.
	before func(t *testing.T, b *bed)
	plant  func(t *testing.T, b *bed) (remove func())
	want   string // what one line of the difference begins with
}{
	{name: "device", want: "left behind: net:[# c device: veth", plant: func(t *testing.T, b *bed) func() {
		c := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "c"}, PeerName: "d"}
		b.in(t, func() error { return netlink.LinkAdd(c) })
		return func() { b.in(t, func() error { return netlink.LinkDel(c) }) }
	}},
	{name: "mtu", want: "changed: net:[# a mtu: was 1500, is 1400", plant: func(t *testing.T, b *bed) func() {
		b.onA(t, func(a netlink.Link) error { return netlink.LinkSetMTU(a, 1400) })
		return func() { b.onA(t, func(a netlink.Link) error { return netlink.LinkSetMTU(a, 1500) }) }
	}},
	{name: "promiscuous mode", want: "changed: net:[# a flags", plant: func(t *testing.T, b *bed) func() {
		b.onA(t, netlink.SetPromiscOn)
		return func() { b.onA(t, netlink.SetPromiscOff) }
	}},
	{name: "XDP program", want: "changed: net:[# a XDP: was none, is mode 1, program ", plant: func(t *testing.T, b *bed) func() {
		p := pass(t, "stranger", ebpf.XDP, 0)
		b.onA(t, func(a netlink.Link) error { return netlink.LinkSetXdpFdWithFlags(a, p.FD(), unix.XDP_FLAGS_DRV_MODE) })
		return func() {
			b.onA(t, func(a netlink.Link) error { return netlink.LinkSetXdpFdWithFlags(a, -1, unix.XDP_FLAGS_DRV_MODE) })
		}
	}},
	{name: "tcx link", want: "changed: net:[# a tcx ingress: was none, is program ", plant: func(t *testing.T, b *bed) func() {
		p := pass(t, "stranger", ebpf.SchedCLS, ebpf.AttachTCXIngress)
		var l link.Link
		b.onA(t, func(a netlink.Link) (err error) {
			l, err = link.AttachTCX(link.TCXOptions{Interface: a.Attrs().Index, Program: p, Attach: ebpf.AttachTCXIngress})
			return err
		})
		return func() { must(t, l.Close()) }
	}},
	{name: "filter", want: "changed: net:[# a filters: was none, is bpf parent fffffff3", before: func(t *testing.T, b *bed) {
		b.onA(t, func(a netlink.Link) error { return netlink.QdiscAdd(clsact(a)) })
	}, plant: func(t *testing.T, b *bed) func() {
		p := pass(t, "stranger", ebpf.SchedCLS, 0)
		filter := func(a netlink.Link) netlink.Filter {
			return &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: a.Attrs().Index, Parent: netlink.HANDLE_MIN_EGRESS,
				Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1}, Fd: p.FD(), Name: "stranger", DirectAction: true}
		}
		b.onA(t, func(a netlink.Link) error { return netlink.FilterAdd(filter(a)) })
		return func() { b.onA(t, func(a netlink.Link) error { return netlink.FilterDel(filter(a)) }) }
	}},
	{name: "clsact qdisc", want: "changed: net:[# a qdiscs: was ", plant: func(t *testing.T, b *bed) func() {
		b.onA(t, func(a netlink.Link) error { return netlink.QdiscAdd(clsact(a)) })
		return func() { b.onA(t, func(a netlink.Link) error { return netlink.QdiscDel(clsact(a)) }) }
	}},
	{name: "root qdisc", want: "changed: net:[# a qdiscs: was noqueue 0: parent ffffffff, is pfifo 1: parent ffffffff", plant: func(t *testing.T, b *bed) func() {
		root := func(a netlink.Link) netlink.Qdisc {
			return &netlink.GenericQdisc{QdiscType: "pfifo", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: a.Attrs().Index,
				Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}}
		}
		b.onA(t, func(a netlink.Link) error { return netlink.QdiscAdd(root(a)) })
		return func() { b.onA(t, func(a netlink.Link) error { return netlink.QdiscDel(root(a)) }) }
	}},
	{name: "RPS mask", want: "changed: net:[# a queues/rx-1/rps_cpus: was ", plant: func(t *testing.T, b *bed) func() {
		b.writeSys(t, "queues/rx-1/rps_cpus", "1")
		return func() { b.writeSys(t, "queues/rx-1/rps_cpus", "0") }
	}},
	{name: "superblock of sysfs", want: "changed: net:[# sysfs superblock: was writable, is read-only", plant: func(t *testing.T, b *bed) func() {
		var mount int // keeps the superblock
		flag := func(flag string) {
			b.in(t, func() error {
				fsfd, err := unix.Fspick(mount, "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
				if err != nil {
					return err
				}
				defer unix.Close(fsfd)
				return errors.Join(unix.FsconfigSetFlag(fsfd, flag), unix.FsconfigReconfigure(fsfd))
			})
		}
		b.in(t, func() error {
			fsfd, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
			if err != nil {
				return err
			}
			defer unix.Close(fsfd)
			if err := unix.FsconfigCreate(fsfd); err != nil {
				return err
			}
			mount, err = unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
			return err
		})
		flag("ro")
		return func() { flag("rw"); unix.Close(mount) }
	}},
	{name: "RFS table", want: "changed: net:[# a queues/rx-0/rps_flow_cnt: was 0, is 64", plant: func(t *testing.T, b *bed) func() {
		b.writeSys(t, "queues/rx-0/rps_flow_cnt", "64")
		return func() { b.writeSys(t, "queues/rx-0/rps_flow_cnt", "0") }
	}},
	{name: "deferred interrupts", want: "changed: net:[# a napi_defer_hard_irqs: was 0, is 2", plant: func(t *testing.T, b *bed) func() {
		b.writeSys(t, "napi_defer_hard_irqs", "2")
		return func() { b.writeSys(t, "napi_defer_hard_irqs", "0") }
	}},
	{name: "threaded NAPI", want: "changed: net:[# a threaded: was 0, is 1", before: withGRO, plant: func(t *testing.T, b *bed) func() {
		b.writeSys(t, "threaded", "1")
		return func() { b.writeSys(t, "threaded", "0") }
	}},
	{name: "policy of a NAPI thread", want: "changed: net:[# a NAPI threads: was policy 0 nice 0", before: func(t *testing.T, b *bed) {
		withGRO(t, b)
		b.writeSys(t, "threaded", "1")
	}, plant: func(t *testing.T, b *bed) func() {
		pid := b.napiThread(t)
		must(t, unix.SchedSetAttr(pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: 5}, 0))
		return func() {
			must(t, unix.SchedSetAttr(pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0))
		}
	}},
	{name: "ethtool feature", want: "changed: net:[# a feature tx-checksum-ip-generic: was on, is off", plant: func(t *testing.T, b *bed) func() {
		b.feature(t, "tx-checksum-ip-generic", "off")
		return func() { b.feature(t, "tx-checksum-ip-generic", "on") }
	}},
	{name: "sysctl of the namespace", want: "changed: net:[# sysctl net.core.somaxconn: was ", plant: func(t *testing.T, b *bed) func() {
		return b.sysctl(t, "net/core/somaxconn", "123")
	}},
	{name: "sysctl of a device", want: "changed: net:[# a sysctl net.ipv4.conf.a.rp_filter: was ", plant: func(t *testing.T, b *bed) func() {
		return b.sysctl(t, "net/ipv4/conf/a/rp_filter", "2")
	}},
	{name: "BPF program", want: "left behind: BPF prog #: ol_forgotten, type 6", plant: func(t *testing.T, b *bed) func() {
		p := pass(t, "ol_forgotten", ebpf.XDP, 0)
		return func() { p.Close() }
	}},
	{name: "BPF map", want: "left behind: BPF map #: ol_forgotten, type 2", plant: func(t *testing.T, b *bed) func() {
		m := newMap(t, ebpf.Array)
		return func() { m.Close() }
	}},
	{name: "BPF link", want: "left behind: BPF link #: type 11, program ", plant: func(t *testing.T, b *bed) func() {
		p := pass(t, "ol_forgotten", ebpf.SchedCLS, ebpf.AttachTCXEgress)
		var l link.Link
		b.onA(t, func(a netlink.Link) (err error) {
			l, err = link.AttachTCX(link.TCXOptions{Interface: a.Attrs().Index, Program: p, Attach: ebpf.AttachTCXEgress})
			return err
		})
		return func() { must(t, l.Close()); p.Close() }
	}},
	{name: "kernel thread of a lane", want: "left behind: kernel thread cpumap/0/map:#: policy 0", plant: func(t *testing.T, b *bed) func() {
		m := newMap(t, ebpf.CPUMap)
		must(t, m.Put(uint32(0), uint32(64)))
		return func() { m.Close() }
	}},
	{name: "bpffs mount", want: "left behind: mount #/overlane-bpf: bpf file system", plant: mountBPFFS},
	{name: "pin", want: "left behind: pin #/ol_pin: ", before: func(t *testing.T, b *bed) { t.Cleanup(mountBPFFS(t, b)) },
		plant: func(t *testing.T, b *bed) func() {
			m := newMap(t, ebpf.Array)
			must(t, m.Pin(filepath.Join(b.mountPoint(), "ol_pin")))
			return func() { must(t, m.Unpin()); m.Close() }
		}},
	{name: "named namespace", want: "left behind: mount #/overlane-named: namespace", plant: func(t *testing.T, b *bed) func() {
		at := filepath.Join(t.TempDir(), "overlane-named")
		must(t, os.WriteFile(at, nil, 0o600))
		must(t, unix.Mount(FD(int(b.ns.file.Fd())), at, "", unix.MS_BIND, ""))
		return func() { must(t, unix.Unmount(at, 0)) }
	}},
	{name: "process in the namespace", want: "left behind: net:[# process #: sleep", plant: func(t *testing.T, b *bed) func() {
		cmd := exec.Command("sleep", "60")
		b.in(t, cmd.Start)
		return func() { must(t, cmd.Process.Kill()); _ = cmd.Wait() }
	}},
	{name: "state file", want: "left behind: file #/journal: ", plant: func(t *testing.T, b *bed) func() {
		path := filepath.Join(b.dir, "journal")
		must(t, os.WriteFile(path, nil, 0o600))
		return func() { must(t, os.Remove(path)) }
	}},
}

func TestEachKindOfResidueIsFound(t *testing.T) {
	for _, tt := range plants {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			if tt.before != nil {
				tt.before(t, b)
			}
			o, err := openScope(b.scope)
			must(t, err)
			defer o.close()
			before, err := o.read()
			must(t, err)

			remove := tt.plant(t, b)
			after, err := o.read()
			must(t, err)
			found := Diff(before, after)
			if !slices.ContainsFunc(found, func(line string) bool { return matches(tt.want, line) }) {
				t.Errorf("no line %q among:\n%s", tt.want, strings.Join(found, "\n"))
			}

			remove()
			left, err := o.settled(before, settle)
			must(t, err)
			if len(left) > 0 {
				t.Errorf("after removal:\n%s", strings.Join(left, "\n"))
			}
		})
	}
}

// matches reports whether line begins with the pattern, in which # stands for
// any run of characters.
func matches(pattern, line string) bool {
	parts := strings.Split(pattern, "#")
	rest, ok := strings.CutPrefix(line, parts[0])
	for _, part := range parts[1:] {
		var i int
		if i = strings.Index(rest, part); i < 0 {
			return false
		}
		rest = rest[i+len(part):]
	}
	return ok
}
