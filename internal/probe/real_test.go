// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/netns"
)

// newNS creates a namespace and runs ip(8) commands in it, one a line.
func newNS(t *testing.T, script string) *netns.Handle {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: creates a network namespace and loads programs")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip from iproute2")
	}
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	err = h.Do(func() error {
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("ip: %v", err)
	}
	return h
}

// The probes ask; these do. What a probe says must be what happens.
var doing = map[ID]func(h *netns.Handle) error{
	BTF: func(*netns.Handle) error {
		_, err := os.Stat("/sys/kernel/btf/vmlinux")
		return err
	},
	TCX: func(h *netns.Handle) error {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: ret(-1)})
		if err != nil {
			return err
		}
		defer prog.Close()
		return h.Do(func() error {
			l, err := link.AttachTCX(link.TCXOptions{Interface: 1, Program: prog, Attach: ebpf.AttachTCXEgress})
			if err != nil {
				return err
			}
			return l.Close()
		})
	},
	TracepointBT: func(*netns.Handle) error {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "netif_receive_skb", License: "GPL", Instructions: ret(0),
		})
		if err != nil {
			return err
		}
		defer prog.Close()
		l, err := link.AttachTracing(link.TracingOptions{Program: prog})
		if err != nil {
			return err
		}
		return l.Close()
	},
	RPS: func(h *netns.Handle) error { return writeSysfs(h, "class/net/lo/queues/rx-0/rps_cpus", "1") },
	ThreadedNAPI: func(h *netns.Handle) error {
		return writeSysfs(h, "class/net/vx0/threaded", "1")
	},
	UDPGRO: func(h *netns.Handle) error {
		return h.Do(func() error { return ethtool.SetFeature("vx0", "rx-udp-gro-forwarding", true) })
	},
	CPUMap: func(*netns.Handle) error {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.CPUMap, KeySize: 4, ValueSize: 8, MaxEntries: 1})
		if err != nil {
			return err
		}
		defer m.Close()
		return m.Put(uint32(0), struct{ Size, Prog uint32 }{64, 0})
	},
	SoftnetData: readSoftnet,
}

func ret(v int32) asm.Instructions { return asm.Instructions{asm.Mov.Imm(asm.R0, v), asm.Return()} }

func writeSysfs(h *netns.Handle, name, val string) error {
	root, err := h.Sysfs()
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(val)
	return err
}

func TestProbesAgreeWithWhatTheKernelDoes(t *testing.T) {
	p := New()
	for id, do := range doing {
		t.Run(string(id), func(t *testing.T) {
			h := newNS(t, "link set lo up\nlink add vx0 type vxlan id 1 dstport 4789")
			f := p.Feature(id)
			err := do(h)
			switch {
			case f.State == Unknown:
				t.Fatalf("inconclusive as root: %+v; in fact: %v", f, err)
			case f.State == Supported && err != nil:
				t.Fatalf("supported (%s), in fact: %v", f.Reason, err)
			case f.State == Unsupported && err == nil:
				t.Fatalf("unsupported (%s), in fact it works", f.Reason)
			}
			t.Logf("%s: %s", f.State, f.Reason)
		})
	}
}

func TestProbesAgreeWithTheKernelsAge(t *testing.T) {
	newNS(t, "")
	p := New()
	// What no build option takes away from a kernel with BPF and BTF.
	for _, id := range []ID{TCX, ThreadedNAPI, UDPGRO, CPUMap, CPUMapGRO} {
		f := p.Feature(id)
		older, ok := olderThan(p.env.release, f.MinKernel)
		if !ok {
			t.Fatalf("release %q", p.env.release)
		}
		if f.State == Supported == older {
			t.Errorf("%s is %s on %s, and came with %s", id, f.State, p.env.release, f.MinKernel)
		}
	}
}

func TestProbesAgreeWithTheKernelsOptions(t *testing.T) {
	newNS(t, "")
	on := kernelConfig(t)
	p := New()
	for id, config := range map[ID]string{RPS: "CONFIG_RPS", BPFQdisc: "CONFIG_NET_SCH_BPF", BTF: "CONFIG_DEBUG_INFO_BTF"} {
		if f := p.Feature(id); f.State == Supported != on[config] {
			t.Errorf("%s is %s (%s), %s is %v", id, f.State, f.Reason, config, on[config])
		}
	}
}

// kernelConfig returns the options that are on.
func kernelConfig(t *testing.T) map[string]bool {
	t.Helper()
	f, err := os.Open("/proc/config.gz")
	if err != nil {
		t.Skip("needs /proc/config.gz")
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	on := map[string]bool{}
	s := bufio.NewScanner(z)
	for s.Scan() {
		if k, v, ok := strings.Cut(s.Text(), "="); ok && (v == "y" || v == "m") {
			on[k] = true
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return on
}

func TestNICAnswersAgreeWithAttaching(t *testing.T) {
	h := newNS(t, `link add va type veth peer name vb
		link add vx0 type vxlan id 1 dstport 4789
		link add br0 type bridge
		tuntap add tap0 mode tap`)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: ret(2)})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	p := New()
	seen := map[State]int{}
	for _, name := range []string{"lo", "va", "vx0", "br0", "tap0"} {
		err := h.Do(func() error {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			f := p.NIC(h, name, l.Attrs().Index, l.Attrs().MTU)
			seen[f.State]++
			x, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: l.Attrs().Index, Flags: link.XDPDriverMode})
			if err == nil {
				x.Close()
			}
			if f.State == Unknown || f.State == Supported != (err == nil) {
				t.Errorf("%s: %s (%s), in fact: %v", name, f.State, f.Reason, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen[Supported] == 0 || seen[Unsupported] == 0 {
		t.Fatalf("one-sided: %v", seen)
	}
	if f := p.NIC(h, "gone", 1<<20, 1500); f.State != Unknown {
		t.Fatalf("a device that is not there: %+v", f)
	}
}

// What lowers the MTU of a whole node says so where it is copied from.
func TestAnMTUIsNotLoweredWithoutAWarning(t *testing.T) {
	h := newNS(t, `tuntap add tap0 mode tap
		link set tap0 mtu 9000`)
	var index int
	err := h.Do(func() error {
		l, err := netlink.LinkByName("tap0")
		if err == nil {
			index = l.Attrs().Index
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	f := New().NIC(h, "tap0", index, 9000)
	if f.State != Unknown || !strings.Contains(f.Remedy.String(), "mtu 3498") {
		t.Fatalf("%+v, want the driver's limit unknown", f)
	}
	if !strings.Contains(f.Remedy.String(), "# warning: this node then loses larger frames") {
		t.Errorf("no warning: %s", f.Remedy.String())
	}
}
