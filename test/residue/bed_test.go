// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Pieces that the plants are made of.

func clsact(a netlink.Link) netlink.Qdisc {
	return &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: a.Attrs().Index,
		Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
}

// withGRO gives device a NAPI instances: a veth has them only with GRO or XDP.
func withGRO(t *testing.T, b *bed) {
	t.Helper()
	b.feature(t, "generic-receive-offload", "on")
}

// feature sets a feature of device a with ethtool(8), and makes sure by what
// that prints. The name must be one that it prints.
func (b *bed) feature(t *testing.T, name, value string) {
	t.Helper()
	if _, err := exec.LookPath("ethtool"); err != nil {
		t.Skip("needs ethtool: sets a feature of a device")
	}
	var out []byte
	b.in(t, func() (err error) {
		if out, err = exec.Command("ethtool", "-K", "a", name, value).CombinedOutput(); err == nil {
			out, err = exec.Command("ethtool", "-k", "a").CombinedOutput()
		}
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
	for line := range strings.Lines(string(out)) {
		if strings.TrimSpace(line) == name+": "+value {
			return
		}
	}
	t.Fatalf("%s is not %s:\n%s", name, value, out)
}

func (b *bed) napiThread(t *testing.T) int {
	t.Helper()
	var pid int
	b.in(t, func() error {
		answers, err := napis()
		for _, a := range answers {
			pid = max(pid, int(number(attrs(a[genlHeaderSize:])[napiPID])))
		}
		return err
	})
	if pid == 0 {
		t.Skip("needs netdev netlink that names NAPI threads (Linux 6.8)")
	}
	return pid
}

// sysctl writes a value in the namespace and returns how to write the old one.
func (b *bed) sysctl(t *testing.T, file, value string) (undo func()) {
	t.Helper()
	path := "/proc/sys/" + file
	var old []byte
	b.in(t, func() (err error) {
		if old, err = os.ReadFile(path); err != nil {
			return err
		}
		return os.WriteFile(path, []byte(value), 0)
	})
	return func() { b.in(t, func() error { return os.WriteFile(path, old, 0) }) }
}

func newMap(t *testing.T, typ ebpf.MapType) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ol_forgotten", Type: typ, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func (b *bed) mountPoint() string { return filepath.Join(b.dir, "..", "overlane-bpf") }

func mountBPFFS(t *testing.T, b *bed) (remove func()) {
	t.Helper()
	must(t, os.Mkdir(b.mountPoint(), 0o700))
	must(t, unix.Mount("bpf", b.mountPoint(), "bpf", 0, ""))
	return func() {
		must(t, unix.Unmount(b.mountPoint(), 0))
		must(t, os.Remove(b.mountPoint()))
	}
}
