// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/nlsock"
	"github.com/overlane/overlane/internal/node"
)

// site is a host of the lab's overlay, scanned.
type site struct {
	t       testing.TB
	overlay *netns.Handle // where tunnel and bridge are
	pod     *netns.Handle
	mac     MAC
	veth    string
	paths   []Path
	w       *Watcher
}

var serial int

// lab builds an overlay of one pod, and scans for paths in it as the daemon would.
func lab(t testing.TB, topology bed.Topology, own func(uint32) bool) *site {
	t.Helper()
	return labOf(t, topology, 1, own)
}

func labOf(t testing.TB, topology bed.Topology, pods int, own func(uint32) bool) *site {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds network namespaces")
	}
	for _, tool := range []string{"ip", "bridge", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool + " from iproute2")
		}
	}
	serial++
	b, err := bed.Up(bed.Options{
		Name: fmt.Sprintf("s%d%d", os.Getpid()%100000, serial), StateDir: filepath.Join(t.TempDir(), "lab"), Topology: topology, Pods: pods,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Down(); err != nil {
			t.Error(err)
		}
	})
	host := b.Receiver()
	s := &site{t: t, overlay: host.Overlay, pod: host.Pods[0].NS, mac: MAC(host.Pods[0].MAC), veth: host.Pods[0].HostEnd}

	sc, err := node.NewScanner(node.Options{Home: host.NS})
	if err != nil {
		t.Fatal(err)
	}
	defer sc.Close()
	snap, err := sc.Scan(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range snap.Pods {
		for _, tunnel := range p.Tunnels {
			s.paths = append(s.paths, Path{tunnel, p.Host})
		}
	}
	if len(s.paths) != pods {
		t.Fatalf("paths: %v\nskipped: %v", s.paths, snap.Skipped)
	}
	h, err := sc.Namespace(s.paths[0].Tunnel.NetnsCookie)
	if err != nil {
		t.Fatal(err)
	}
	if s.w, err = Watch(h, orNone(own), hooks(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.w.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// orNone is own, and of nil that no program is overlane's.
func orNone(own func(uint32) bool) func(uint32) bool {
	if own == nil {
		return func(uint32) bool { return false }
	}
	return own
}

// hooks are shared, as by the daemon's watchers, and end with the tests.
func hooks(t testing.TB) *Hooks {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads BPF programs")
	}
	h, err := allHooks()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

var allHooks = sync.OnceValues(LoadHooks)

func (s *site) verdict() Verdict {
	s.t.Helper()
	list := s.w.Check(s.paths)
	if len(list) != 1 {
		s.t.Fatalf("verdicts: %v", list)
	}
	return list[0]
}

func (s *site) safe() {
	s.t.Helper()
	v := s.verdict()
	want := Verdict{Path: s.paths[0], MAC: s.mac, TunnelMAC: s.macOf(s.paths[0].Tunnel), MTU: v.MTU, Refresh: 300 * time.Second, Relearn: 300 * time.Second}
	if d := cmp.Diff(want, v, verdicts); d != "" || v.MTU == 0 {
		s.t.Fatalf("MTU %d\n%s", v.MTU, d)
	}
}

// macOf asks for the address of a device of the overlay's namespace.
func (s *site) macOf(dev node.Dev) (m MAC) {
	s.t.Helper()
	err := s.overlay.Do(func() error {
		i, err := net.InterfaceByIndex(dev.Ifindex)
		if err == nil {
			m = MAC(i.HardwareAddr)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

func (s *site) unsafe(want string) {
	s.t.Helper()
	if v := s.verdict(); v.Safe() || !strings.Contains(v.Reason, want) {
		s.t.Fatalf("reason %q, want %q", v.Reason, want)
	}
}

// run runs commands, one a line, with VX and VE for the devices of the path.
func (s *site) run(h *netns.Handle, script string) {
	s.t.Helper()
	if err := s.try(h, script); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) try(h *netns.Handle, script string) error {
	return runLines(h, strings.NewReplacer("VX", s.paths[0].Tunnel.Name, "VE", s.veth, "BR", bed.Bridge, "MAC", s.mac.String()).Replace(script))
}

// runLines runs commands, one a line.
func runLines(h *netns.Handle, script string) error {
	return h.Do(func() error {
		for line := range strings.Lines(script) {
			args := strings.Fields(line)
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w\n%s", strings.TrimSpace(line), err, out)
			}
		}
		return nil
	})
}

func (s *site) sysctl(key, val string) {
	s.t.Helper()
	err := s.overlay.Do(func() error { return os.WriteFile("/proc/sys/net/"+key, []byte(val), 0) })
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) needBridgeNetfilter() {
	s.t.Helper()
	there := false
	err := s.overlay.Do(func() (err error) { there, err = exists("/proc/sys/net/bridge"); return })
	if err != nil {
		s.t.Fatal(err)
	}
	if !there {
		s.t.Skip("needs br_netfilter")
	}
}

func (s *site) index(h *netns.Handle, dev string) (index int) {
	s.t.Helper()
	err := h.Do(func() error {
		i, err := net.InterfaceByName(dev)
		if err == nil {
			index = i.Index
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return index
}

// program is a foreign one that does nothing.
func program(t testing.TB, typ ebpf.ProgramType, verdict int32) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: typ, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// nftMsg is one message of a batch to nftables.
type nftMsg struct {
	typ    uint16
	family byte
	flags  uint16
	attrs  []byte
}

func be(v uint32) []byte { return []byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)} }

func zstr(s string) []byte { return append([]byte(s), 0) }

const nested = 0x8000

// newTable, delTable and what follows are what nft(8) would send.
func newTable(family byte) nftMsg {
	return nftMsg{unix.NFT_MSG_NEWTABLE, family, unix.NLM_F_CREATE, nlsock.Attr(nil, unix.NFTA_TABLE_NAME, zstr("t"))}
}

func delTable(family byte) nftMsg {
	return nftMsg{unix.NFT_MSG_DELTABLE, family, 0, nlsock.Attr(nil, unix.NFTA_TABLE_NAME, zstr("t"))}
}

func newChain(family byte, hook uint32, dev string) nftMsg {
	var h []byte
	if dev != "" {
		h = nlsock.Attr(nil, unix.NFTA_HOOK_DEV, zstr(dev))
	}
	return chainAt(family, hook, h)
}

// newPrefixChain is for all devices whose names begin so.
func newPrefixChain(family byte, hook uint32, prefix string) nftMsg {
	return chainAt(family, hook, nlsock.Attr(nil, nftaHookDevs|nested, nlsock.Attr(nil, nftaDevicePrefix, zstr(prefix))))
}

func chainAt(family byte, hook uint32, devs []byte) nftMsg {
	h := nlsock.Attr(nil, unix.NFTA_HOOK_HOOKNUM, be(hook))
	h = append(nlsock.Attr(h, unix.NFTA_HOOK_PRIORITY, be(0)), devs...)
	a := nlsock.Attr(nil, unix.NFTA_CHAIN_TABLE, zstr("t"))
	a = nlsock.Attr(a, unix.NFTA_CHAIN_NAME, zstr("mine"))
	a = nlsock.Attr(a, unix.NFTA_CHAIN_HOOK|nested, h)
	a = nlsock.Attr(a, unix.NFTA_CHAIN_TYPE, zstr("filter"))
	return nftMsg{unix.NFT_MSG_NEWCHAIN, family, unix.NLM_F_CREATE, a}
}

func newFlowtable(family byte, dev string) nftMsg {
	h := nlsock.Attr(nil, 1, be(0)) // NFTA_FLOWTABLE_HOOK_NUM: ingress
	h = nlsock.Attr(h, 2, be(0))    // NFTA_FLOWTABLE_HOOK_PRIORITY
	h = nlsock.Attr(h, nftaFlowtableHookDevs|nested, nlsock.Attr(nil, nftaDeviceName, zstr(dev)))
	a := nlsock.Attr(nil, nftaFlowtableTable, zstr("t"))
	a = nlsock.Attr(a, nftaFlowtableName, zstr("mine"))
	a = nlsock.Attr(a, nftaFlowtableHook|nested, h)
	return nftMsg{unix.NFT_MSG_NEWFLOWTABLE, family, unix.NLM_F_CREATE, a}
}

func (s *site) nftables(msgs ...nftMsg) error { return commit(s.overlay, msgs...) }

// commit commits a batch to nftables.
func commit(h *netns.Handle, msgs ...nftMsg) error {
	var b []byte
	put := func(typ, flags uint16, family byte, resource uint16, attrs []byte) {
		var h []byte
		h = binary.NativeEndian.AppendUint32(h, uint32(unix.SizeofNlMsghdr+sizeofGenmsg+len(attrs)))
		h = binary.NativeEndian.AppendUint32(h, uint32(typ)|uint32(unix.NLM_F_REQUEST|flags)<<16)
		h = binary.NativeEndian.AppendUint32(h, 1)
		h = binary.NativeEndian.AppendUint32(h, 0)
		h = append(h, family, 0, byte(resource>>8), byte(resource))
		b = append(append(b, h...), attrs...)
	}
	put(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil)
	for _, m := range msgs {
		put(nft(m.typ), unix.NLM_F_ACK|m.flags, m.family, 0, m.attrs)
	}
	put(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES, nil)
	return h.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		// Answers are there when send returns.
		for buf := make([]byte, 1<<14); ; {
			n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
			if err == unix.EAGAIN {
				return nil
			}
			if err != nil {
				return err
			}
			for m := range nlsock.Messages(buf[:n]) {
				if e := int32(nlsock.U32(m.Body)); m.Type == unix.NLMSG_ERROR && e != 0 {
					return unix.Errno(-e)
				}
			}
		}
	})
}
