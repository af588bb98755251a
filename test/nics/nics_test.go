// SPDX-License-Identifier: Apache-2.0

package nics

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/overlane/overlane/test/speed"
	"github.com/overlane/overlane/test/vm"
	"github.com/overlane/overlane/test/vm/guest"
)

// Kernels with the drivers of NICs.
var (
	oldest = vm.Line{Suite: "bookworm-security", Major: 6, Minor: 12, Generic: true, Pin: vm.Lines[0].Pin}
	newest = vm.Line{Suite: "trixie-backports", Major: 7, Minor: -1, Generic: true, Pin: vm.Lines[1].Pin}
)

// nic is one that the emulator has.
type nic struct {
	name string
	// model and options are the emulator's; queues are those of the tap, where it shows in the NIC.
	model, options string
	queues         int
	offloads       bool // see Port
	how            How
	mtu            int // 0: 1500
	modules        []string
}

const queues = 4

var all = []nic{
	{name: "virtio_net, 4 queues", model: "virtio-net-pci", options: manyQueues, queues: queues, offloads: true, modules: []string{"virtio_net"}},
	{name: "virtio_net, 1 queue", model: "virtio-net-pci", offloads: true, modules: []string{"virtio_net"}},
	{name: "virtio_net without guest-offload control", model: "virtio-net-pci", options: manyQueues + ",ctrl_guest_offloads=off", queues: queues, offloads: true,
		modules: []string{"virtio_net"}},
	{name: "igb", model: "igb", modules: []string{"igb"}},
	{name: "igb, MTU 9000", model: "igb", mtu: 9000, modules: []string{"igb"}},
	{name: "vmxnet3", model: "vmxnet3", modules: []string{"vmxnet3"}},
	{name: "e1000e", model: "e1000e", modules: []string{"e1000e"}},
	{name: "bond over two igb", model: "igb", how: Bond, modules: []string{"igb", "bonding"}},
	{name: "VLAN over igb", model: "igb", how: VLAN, modules: []string{"igb", "8021q"}},
}

// A vector for each queue of each direction, one for the settings and one for control.
var manyQueues = fmt.Sprintf("mq=on,vectors=%d", 2*queues+2)

// devices are arguments of the emulator, and what its NICs are connected to.
func (n nic) devices() (args []string, ports []Port) {
	at := 3 // the first descriptor that is handed over
	count := 1
	if n.how == Bond {
		count = 2
	}
	for i := range count {
		p := Port{Queues: max(n.queues, 1), Offloads: n.offloads, VLAN: n.how == VLAN}
		var fds []string
		for range p.Queues {
			fds = append(fds, fmt.Sprint(at))
			at++
		}
		// An igb takes slots for its virtual functions, too: 16 and 17 behind its own.
		device := fmt.Sprintf("%s,netdev=n%d,mac=52:54:00:00:00:%02d,addr=%#x,romfile=", n.model, i, 2+i, 3+5*i)
		if n.options != "" {
			device += "," + n.options
		}
		args = append(args, "-netdev", fmt.Sprintf("tap,id=n%d,vhost=off,fds=%s", i, strings.Join(fds, ":")), "-device", device)
		ports = append(ports, p)
	}
	return args, ports
}

var (
	table      = flag.Bool("table", false, "every NIC on both kernels (an hour)")
	only       = flag.String("only", "", "with -table: NICs whose names this expression fits")
	line       = flag.String("line", "", "with -table: the kernel whose line is this")
	mechanisms = flag.String("mechanisms", "", "with -table: those to try, separated by commas")
	out        = flag.String("out", "", "with -table: the folder for the table")
)

const limit = 30 * time.Minute

// machines boots machines with a NIC.
type machines struct {
	init, inside, product string
	emulator              vm.Emulator
	cache                 string
}

func prepare(t *testing.T) *machines {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds network namespaces")
	}
	dir := t.TempDir()
	m := &machines{init: filepath.Join(dir, "init"), inside: filepath.Join(dir, "inside"), product: filepath.Join(dir, "overlane")}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	m.cache = filepath.Join(cache, "overlane-vm")
	// The first that has igb.
	if m.emulator, err = vm.EmulatorSince(t.Context(), 8, m.cache); err != nil {
		t.Fatal(err)
	}
	const root = "github.com/overlane/overlane/"
	vm.Build(t, m.init, "build", root+"test/vm/init")
	vm.Build(t, m.inside, "test", "-c", root+"test/nics/inside")
	vm.Build(t, m.product, "build", root+"cmd/overlane")
	return m
}

// try boots a machine with the NIC, and returns its rows.
func (ms *machines) try(t *testing.T, n nic, l vm.Line, names string) (rows []Row) {
	t.Helper()
	k, err := l.Kernel(t.Context(), ms.cache)
	if err != nil {
		t.Fatal(err)
	}
	if k.Warning != "" {
		t.Logf("warning: %s", k.Warning)
	}
	mtu := max(n.mtu, 1500)
	how := cmp.Or(n.how, Plain)
	devices, ports := n.devices()
	w, err := NewWire(mtu, ports...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	args := []string{"-test.v=test2json", "-test.count=1", fmt.Sprintf("-test.timeout=%v", limit), "-nic=" + n.name, fmt.Sprintf("-mtu=%d", mtu), "-mechanisms=" + names, fmt.Sprintf("-how=%s", how)}
	m := &vm.Machine{
		Kernel: k, Dir: t.ArtifactDir(), Tests: map[string]string{"inside": ms.inside}, Programs: []string{"ip", ms.product}, Init: ms.init,
		Modules: append([]string{"virtio_pci", "vxlan", "bridge", "veth", "sch_ingress", "xfrm_user"}, n.modules...),
		Runs:    []guest.Run{{Name: "inside", Args: args}}, Emulator: ms.emulator, Devices: devices, Handed: w.Taps,
		Boot: vm.Boot{CPUs: 4},
	}
	for _, o := range vm.Run(t, m, limit, testing.Verbose()) {
		for _, line := range strings.Split(o.Output, "\n") {
			if _, text, ok := strings.Cut(line, Mark+"{"); ok {
				var r Row
				if err := json.Unmarshal([]byte("{"+text), &r); err != nil {
					t.Error(err)
					continue
				}
				rows = append(rows, r)
			}
		}
	}
	return rows
}

// The driver that restarts its link for XDP: by itself overlane leaves the link alone, where priority
// would be tried.
func TestTheDefaultConfigurationLeavesTheLinkAlone(t *testing.T) {
	speed.Long(t)
	ms := prepare(t)
	i := slices.IndexFunc(all, func(n nic) bool { return n.name == "igb" })
	for _, r := range ms.try(t, all[i], oldest, "default") {
		t.Log("\n" + Table([]Row{r}))
		// Without that, nothing was tried.
		if !strings.Contains(r.Reason, "restarts the link") {
			t.Errorf("priority is %s, and does not say what keeps it from the NIC: %s", r.State, r.Reason)
		}
	}
}

// Every mechanism on every NIC.
func TestEveryNIC(t *testing.T) {
	if !*table {
		t.Skip("needs hours: make nics")
	}
	which, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	ms := prepare(t)
	var mu sync.Mutex
	rows := map[string][]Row{}
	var order []string
	t.Run("machines", func(t *testing.T) {
		for _, l := range []vm.Line{oldest, newest} {
			for _, n := range all {
				if *line != "" && *line != l.String() || !which.MatchString(n.name) {
					continue
				}
				name := l.String() + " " + n.name
				order = append(order, name)
				t.Run(name, func(t *testing.T) {
					t.Parallel() // the emulator takes one core
					got := ms.try(t, n, l, *mechanisms)
					mu.Lock()
					defer mu.Unlock()
					rows[name] = got
					if *out == "" {
						return
					}
					var sorted []Row
					for _, name := range order {
						sorted = append(sorted, rows[name]...)
					}
					if err := save(*out, sorted); err != nil {
						t.Error(err)
					}
				})
			}
		}
	})
}

// save writes the table, for eyes and for programs.
func save(dir string, rows []Row) error {
	data, err := json.MarshalIndent(rows, "", "\t")
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "nics.json"), append(data, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "nics.md"), []byte(Table(rows)), 0o644))
}
