// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/test/speed"
	"github.com/overlane/overlane/test/vm/guest"
)

// root is the module's name.
const root = "github.com/overlane/overlane/"

// suite is a package's tests, with arguments.
type suite struct {
	pkg   string
	args  []string
	limit time.Duration // of the tests; 0: testLimit
}

// smoke is what runs on each of them.
var smoke = []suite{
	{pkg: "internal/netns"},
	// Left out: what asks /proc/config.gz, which Debian's kernels do not have,
	// and what tries the remedies for a user, with a shell and its tools.
	{pkg: "internal/probe", args: []string{"-test.skip=^(TestProbesAgreeWithTheKernelsOptions|TestDiagnosisOfRealDevicesAndItsCommandsMendThem)$"}},
	// Loading takes the emulated kernel seconds: one test for each way that a
	// program is used.
	{pkg: "internal/datapath", args: []string{"-test.run=^(TestEveryObjectLoads|TestEveryPacketGoesToItsLane|TestXDPRedirectsToALane|TestRulesGiveFlowsTheirClass|TestSparseFlowsAreLatency)"}},
	{pkg: "test/vm/e2e", args: []string{"-tunnels=vxlan,geneve", "-machine-wide"}},
}

// onNewest leaves out what the special machine has.
var onNewest = append(slices.Clone(smoke[:len(smoke)-1]), suite{
	pkg: "test/vm/e2e", args: append(slices.Clone(smoke[len(smoke)-1].args),
		"-test.skip=^TestMerge$/^offline$|^(TestALanesCore|TestTheNICsThreadIsBoundAgainWhenItsCoreGoesOffline)$"),
})

// onOldest leaves out what takes BPF qdiscs, which it has not. What the filtering machine runs
// whole it has to load.
var onOldest = append(slices.Clone(smoke[:len(smoke)-1]), suite{
	pkg: "internal/shortcut", args: []string{"-test.run=^TestHooksOfANamespace$"},
}, suite{
	pkg: "test/vm/e2e", args: append(slices.Clone(smoke[len(smoke)-1].args), "-test.skip=^TestMerge$"),
})

// shortly is what runs on the oldest, and on no other, with -short: what a kernel may refuse or read in another way.
var shortly = []suite{
	{pkg: "internal/datapath", args: []string{"-test.run=^(TestEveryObjectLoads|TestEveryPacketGoesToItsLane)"}},
	{pkg: "test/vm/e2e", args: []string{"-tunnels=geneve", "-machine-wide", "-test.run=^(TestOverlayCarriesTraffic|TestDatagramsThatGoStraight)"}},
}

var usual = Boot{CPUs: 2}

// special is a way to start a kernel that nodes are found with: a core that is
// there and not online, one that is set apart, and backlogs that are polled by
// threads.
var special = Boot{Name: "special", CPUs: 4, Options: "maxcpus=3 isolcpus=2 thread_backlog_napi"}

// underSpecial is what runs there.
var underSpecial = []suite{
	{pkg: "cmd/overlane", args: []string{"-test.run=^TestCoresThatAreSetApartAreNotUsed$"}},
	{pkg: "internal/datapath", args: []string{"-test.run=^(TestXDPRedirectsToALane|TestSamplingStartsAnew)"}},
	{pkg: "test/vm/e2e", args: []string{"-tunnels=vxlan", "-machine-wide", "-backlog-threads",
		"-test.skip=^TestMerge$/^(flows|datagrams|full_backlog|faults|no_pod|killed)|^TestAggregatedDatagrams|^TestDatagramsThatGoStraight"}},
}

// filtering is a machine with all that can stand between the ports of a bridge.
// Of the kernels that are at hand only the newest has every kind of it.
var filtering = Boot{Name: "filtering", CPUs: 2}

// What plants rules by nft and iptables runs with the machine's own kernel.
var underFiltering = []suite{{pkg: "internal/shortcut", args: []string{
	"-test.skip=^(TestRulesThatTellJoinedDatagrams|TestOrdinaryNodesMayJoinDatagrams|TestALegacyRuleThatComesIsSeen|" +
		"TestSocketsThatGetJoinedDatagrams|TestProgramsThatMayTellJoinedDatagrams)$",
}}}

// lockedDown is a machine whose kernel lets no process read its memory.
var lockedDown = Boot{Name: "locked down", CPUs: 1, Options: "lockdown=confidentiality"}

var underLockdown = []suite{{pkg: "cmd/overlane", args: []string{"-test.run=^TestAKernelThatIsLockedDown$"}}}

// filters are the modules of that. The lab's netlink library opens a socket of
// xfrm, too.
var filters = []string{
	"br_netfilter", "nf_tables", "nf_flow_table_inet", "iptable_filter", "sch_tbf", "sch_ingress", "xfrm_user",
	"bonding", "8021q", "macvlan", "ipvlan",
}

// Modules that the tests use; what these need comes along.
var loaded = []string{"vxlan", "geneve", "veth", "bridge", "tun", "dummy"}

// Programs that tests of other packages use.
var programs = []string{"ip", "bridge", "tc"}

const (
	bootLimit = 35 * time.Minute // of a machine that hangs: they take a third of it
	testLimit = 30 * time.Minute // of each binary, inside
)

// fleet is what emulated machines are made of.
type fleet struct {
	bin     string
	tests   map[string]string // binaries, by the suite's name
	kernels map[Line]*Kernel
}

func prepare(t *testing.T, suites []suite, of ...Line) *fleet {
	t.Helper()
	if _, err := exec.LookPath(Program); err != nil {
		t.Skip("needs " + Program)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	f := &fleet{bin: t.TempDir(), tests: map[string]string{}, kernels: map[Line]*Kernel{}}
	Build(t, filepath.Join(f.bin, "init"), "build", root+"test/vm/init")
	for _, s := range suites {
		if name := s.name(); f.tests[name] == "" {
			f.tests[name] = filepath.Join(f.bin, name)
			Build(t, f.tests[name], "test", "-c", root+s.pkg)
		}
	}
	for _, l := range of {
		if f.kernels[l], err = l.Kernel(t.Context(), filepath.Join(cache, "overlane-vm")); err != nil {
			t.Fatal(err)
		}
		if w := f.kernels[l].Warning; w != "" {
			t.Logf("warning: %s", w)
		}
	}
	return f
}

// machine is one that runs these suites.
func (f *fleet) machine(t *testing.T, l Line, how Boot, list []suite, modules ...string) *Machine {
	m := &Machine{
		Kernel: f.kernels[l], Dir: t.ArtifactDir(), Tests: map[string]string{}, Programs: programs,
		Init: filepath.Join(f.bin, "init"), Modules: slices.Concat(loaded, modules), Boot: how,
	}
	for _, s := range list {
		m.Tests[s.name()] = f.tests[s.name()]
		m.Runs = append(m.Runs, s.run())
	}
	return m
}

func TestKernels(t *testing.T) {
	oldest, newest := Lines[0], Lines[len(Lines)-1]
	if testing.Short() {
		f := prepare(t, shortly, oldest)
		t.Run(oldest.String(), func(t *testing.T) { Run(t, f.machine(t, oldest, usual, shortly), bootLimit, false) })
		return
	}
	f := prepare(t, slices.Concat(smoke, underSpecial, underFiltering, underLockdown), Lines...)
	on := func(t *testing.T, l Line, how Boot, list []suite, modules ...string) {
		t.Run(strings.TrimSpace(l.String()+" "+how.Name), func(t *testing.T) { Run(t, f.machine(t, l, how, list, modules...), bootLimit, false) })
	}
	// The emulator takes one core: the longest of all has one for itself.
	t.Run("one core", func(t *testing.T) {
		t.Parallel()
		on(t, newest, usual, onNewest)
	})
	t.Run("another", func(t *testing.T) {
		t.Parallel()
		on(t, oldest, usual, onOldest)
		on(t, newest, special, underSpecial)
		on(t, newest, filtering, underFiltering, filters...)
		on(t, newest, lockedDown, underLockdown)
	})
}

var newestOfAll = flag.Bool("newest", false, "TestNewestKernel fails where that kernel does")

// The newest kernel of all, pinned or not: what fails there warns, and is another change's matter.
func TestNewestKernel(t *testing.T) {
	speed.Long(t)
	l := Lines[len(Lines)-1]
	if *newestOfAll {
		l.Pin = ""
		f := prepare(t, onNewest, l)
		Run(t, f.machine(t, l, usual, onNewest), bootLimit, false)
		return
	}
	out, err := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNewestKernel$", "-test.v", "-newest").CombinedOutput()
	if err != nil {
		t.Logf("warning: overlane fails on the newest kernel: %v\n%s", err, out)
	}
}

// whole is the end-to-end suite, which takes an emulated machine hours.
var whole = []suite{
	{pkg: "test/e2e/stages", limit: 20 * time.Hour},
	{pkg: "test/e2e/lifecycle", limit: 20 * time.Hour},
	{pkg: "test/e2e/order", limit: 20 * time.Hour},
}

// planters are what its tests plant policies with.
var planters = []string{"nft", "iptables-legacy"}

// plugins of those: iptables has its verdicts in one.
const plugins = "/usr/lib/*/xtables/libxt_standard.so"

var wholeSuite = flag.String("whole", "", "the end-to-end suite on each kernel: what of it to run (all: .)")

// The product as it is shipped, from end to end.
func TestWholeSuite(t *testing.T) {
	if *wholeSuite == "" {
		t.Skip("needs hours: make kernels")
	}
	list := slices.Clone(whole)
	for i := range list {
		list[i].args = []string{"-test.run=" + *wholeSuite}
	}
	f := prepare(t, list, Lines...)
	var products []string
	for _, tag := range []string{"", "faults", "next", "resteer"} {
		product := filepath.Join(f.bin, strings.TrimSuffix("overlane_"+tag, "_"))
		Build(t, product, "build", "-tags="+tag, root+"cmd/overlane")
		products = append(products, product)
	}
	for _, l := range Lines {
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel() // the emulator takes one core
			m := f.machine(t, l, usual, list, slices.Concat(filters, []string{"iptable_raw", "cls_bpf"})...)
			m.Programs = slices.Concat(programs, planters, products)
			m.Files, _ = filepath.Glob(plugins)
			Run(t, m, list[0].limit, false)
		})
	}
}

var counted = flag.Bool("counted", false, "instead, a few rows once, and what each program costs in instructions")

var orders = flag.Int("orders", 0, "so many runs of each row of the table of orders (20: hours)")

// The whole table of ways in which flows are split and put in order again, on a machine
// with cores for it.
func TestTableOfOrders(t *testing.T) {
	if *orders == 0 && !*counted {
		t.Skip("needs hours: make orders")
	}
	s := suite{pkg: "test/vm/e2e", limit: 20 * time.Hour, args: []string{
		"-machine-wide", "-test.run=^TestMerge$/^(flows|many datagrams|losses|reordering|sizes)$", fmt.Sprintf("-order-runs=%d", *orders), fmt.Sprintf("-costs=%t", *counted)}}
	how := Boot{CPUs: 6}
	if *counted {
		how = Boot{CPUs: 2, Counted: true}
	}
	on := Lines[len(Lines)-1]
	f := prepare(t, []suite{s}, on)
	Run(t, f.machine(t, on, how, []suite{s}, "sch_netem"), s.limit, true)
}

func (s suite) name() string { return path.Base(s.pkg) }

func (s suite) run() guest.Run {
	return guest.Run{Name: s.name(), Args: append([]string{
		"-test.v=test2json", "-test.count=1", fmt.Sprintf("-test.timeout=%v", max(s.limit, testLimit))}, s.args...)}
}
