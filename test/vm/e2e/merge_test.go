// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism/pipeline"
	"github.com/overlane/overlane/internal/napi"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/sense"
	"github.com/overlane/overlane/test/residue"
	"github.com/overlane/overlane/test/wire"
)

// knows asks the kernel's type information, as nothing of the product does.
func knows(function string) bool {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		panic(err) // an answer would pass for the kernel's
	}
	var f *btf.Func
	return spec.TypeByName(function, &f) == nil
}

// merges tells whether this kernel has what puts split flows in order again.
func merges() bool { return knows("bpf_qdisc_skb_drop") }

// netstat reads a namespace's TCP counters, by the names of /proc/net/netstat and snmp.
func netstat(t *testing.T, ns *netns.Handle) map[string]int {
	t.Helper()
	values := map[string]int{}
	for _, file := range []string{"netstat", "snmp"} {
		var data []byte
		err := ns.Do(func() (err error) {
			data, err = os.ReadFile("/proc/thread-self/net/" + file)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		for i := 0; i+1 < len(lines); i += 2 {
			names, numbers := strings.Fields(lines[i]), strings.Fields(lines[i+1])
			for j := 1; j < len(names) && j < len(numbers); j++ {
				if n, err := strconv.Atoi(numbers[j]); err == nil {
					values[names[j]] = n
				}
			}
		}
	}
	return values
}

// onOneCore has what a pod sends leave its host from one core: else it would overtake
// itself there.
func (o *overlay) onOneCore(t *testing.T) {
	t.Helper()
	root, err := o.hosts[0].net.Sysfs()
	if err == nil {
		err = errors.Join(root.WriteFile("class/net/"+vethDev+"/queues/rx-0/rps_cpus", []byte("1"), 0), root.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// polledByOneCore has one core poll a host's end of the wire, as a NIC's interrupt has: else
// whatever else sends on a core has that core poll it for a while.
func (h *host) polledByOneCore(t *testing.T) {
	t.Helper()
	var threads []int
	root, err := h.ns.Sysfs()
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	err = h.ns.Do(func() error {
		l, err := net.InterfaceByName(wireDev)
		if err != nil {
			return err
		}
		// A veth device is polled where it has GRO.
		if err := ethtool.SetFeature(wireDev, "rx-gro", true); err != nil {
			return err
		}
		if err := root.WriteFile("class/net/"+wireDev+"/threaded", []byte("1"), 0); err != nil {
			return err
		}
		threads, err = napi.Threads(l.Index, 1)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(threads) != 1 {
		t.Fatalf("threads %v poll the wire", threads)
	}
	var core unix.CPUSet
	core.Set(0)
	// An interrupt would not wait for another task on the core.
	first := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := errors.Join(unix.SchedSetaffinity(threads[0], &core), unix.SchedSetAttr(threads[0], &first, 0)); err != nil {
		t.Fatal(err)
	}
}

// name gives a namespace a name while the test runs: no process is in it, and the daemon
// would not find it.
func name(t *testing.T, ns *netns.Handle) {
	t.Helper()
	path := fmt.Sprintf("/run/netns/overlane-test-%d-%d", os.Getpid(), ns.Inode())
	if err := ns.Name(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(path, unix.MNT_DETACH), os.Remove(path)); err != nil {
			t.Error(err)
		}
	})
}

// v4 is a host's pod's address.
func v4(h *host) netip.Addr { return h.in4 }

// splitting is an overlay in whose second host elephants are split.
type splitting struct {
	overlay
	d    *daemon.Daemon
	stop func() error
}

// split builds an overlay, and waits until a flow is split.
func split(t *testing.T, batch int) *splitting {
	t.Helper()
	s := lay(t, bridged)
	residue.Check(t, s.all())
	s.begin(t, splits(governor.XDP, batch, 1))
	return s
}

// lay builds an overlay in whose second host flows can be split.
func lay(t *testing.T, top topology) *splitting {
	t.Helper()
	s := &splitting{}
	s.lay(t, "vxlan", top)
	return s
}

func (s *splitting) lay(t *testing.T, kind string, top topology) {
	t.Helper()
	watchLosses(t)
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.buildAs(kind, top); err != nil {
		t.Fatal(err)
	}
	s.onOneCore(t)
	b := &s.hosts[1]
	b.polledByOneCore(t)
	name(t, b.pod)
	if b.net != b.ns {
		name(t, b.net)
	}
}

// all is all of the second host, and of its pod.
func (s *splitting) all() residue.Scope {
	b := &s.hosts[1]
	scope := residue.Scope{Namespaces: []string{residue.FD(b.ns.FD()), residue.FD(b.pod.FD())}}
	if b.net != b.ns {
		scope.Namespaces = append(scope.Namespaces, residue.FD(b.net.FD()))
	}
	return scope
}

func (s *splitting) begin(t *testing.T, how func(*daemon.Options)) {
	t.Helper()
	s.d, s.stop = s.start(t, governor.TC, how)
	until(t, "a flow is split", func() bool {
		s.copyTCP(t, v4, 4<<20)
		return s.d.Status().Counters.Splits > 0
	})
}

// elephant is in bytes a second: more than a stream sends, less than a sender that sends all
// that goes, on an emulated machine.
const elephant = 2e5

// An emulated core stands still for longer than packets wait by default.
const (
	patient = time.Second
	usual   = 100 * time.Millisecond
)

// splits cuts elephants into micro-flows of so many frames, for so many lanes.
func splits(tier governor.Tier, batch, lanes int) func(*daemon.Options) {
	return func(opts *daemon.Options) {
		if cores, err := online(); err == nil && *runsOfAll > 0 {
			opts.Cores = cores
		}
		opts.Pipeline.Mode = governor.Off
		opts.Pipeline.Microflows = pipeline.Microflows{Mode: governor.Forced, Batch: batch, Cores: lanes, Elephant: elephant, Hold: patient}
		if tier == governor.TC {
			opts.Pipeline.Microflows.NoXDP = errors.New("for this test")
		}
	}
}

// end ends the daemon, which leaves nothing waiting anywhere.
func (s *splitting) end(t *testing.T) {
	t.Helper()
	if err := s.stop(); err != nil {
		t.Errorf("the daemon ended: %v", err)
	}
}

// tally is what has happened by some moment.
type tally struct {
	daemon    control.Counters
	pod, peer map[string]int // TCP's counters: of the receiver, of the sender
	// lost are the packets that devices on the way had dropped when it was begun to count,
	// lostBy when it was done: what a loss leads to is seen in between.
	lost, lostBy uint64
}

func (s *splitting) count(t *testing.T) tally {
	t.Helper()
	b := &s.hosts[1]
	dropped := func() uint64 { return s.hosts[0].dropped(t) + b.dropped(t) + fullRings(t) }
	n := tally{lost: dropped()}
	n.daemon, n.pod, n.peer = s.d.Status().Counters, netstat(t, b.pod), netstat(t, s.hosts[0].pod)
	n.lostBy = dropped()
	return n
}

// dropped is what the devices of a host and its pod have dropped so far.
func (h *host) dropped(t *testing.T) (n uint64) {
	t.Helper()
	for ns, devs := range map[*netns.Handle][]string{h.ns: {wireDev}, h.net: {tunnelDev, vethDev, pipeline.MergeDevice, pipeline.MergedDevice}, h.pod: {podDev}} {
		err := in(ns, func(nl *netlink.Handle) error {
			for _, dev := range devs {
				l, err := nl.LinkByName(dev)
				var none netlink.LinkNotFoundError
				if errors.As(err, &none) {
					continue
				}
				if err != nil {
					return err
				}
				st := l.Attrs().Statistics
				n += st.RxDropped + st.TxDropped
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// backlogDrops returns what tells how much the backlogs of all cores have dropped since then.
func backlogDrops(t *testing.T) (since func() uint64) {
	t.Helper()
	var backlogs sense.Backlogs
	since = func() (n uint64) {
		t.Helper()
		drops, err := backlogs.Drops()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range drops {
			n += d
		}
		return n
	}
	since()
	return since
}

// toll is what happened between two of them.
type toll struct {
	split, microflows, splits                   uint64
	passed, held, gaps, expired, unwatched, out uint64
	lost                                        uint64
	late, resent                                int
	taken                                       int // for lost, by what came: not by a timer, which on an emulated machine is early
	end                                         tally
}

func (s *splitting) since(t *testing.T, was tally) toll {
	t.Helper()
	is := s.count(t)
	a, b := is.daemon, was.daemon
	d := toll{
		end:   is,
		split: a.SplitPackets - b.SplitPackets, microflows: a.Microflows - b.Microflows, splits: a.Splits - b.Splits,
		passed: a.MergePassed - b.MergePassed, held: a.MergeHeld - b.MergeHeld, gaps: a.MergeGaps - b.MergeGaps,
		expired: a.MergeExpired - b.MergeExpired, unwatched: a.MergeUnwatched - b.MergeUnwatched, out: a.MergeDropped - b.MergeDropped,
		lost: max(is.lostBy, was.lost) - was.lost + a.LaneDrops - b.LaneDrops + a.MergeRefused - b.MergeRefused + a.MergeNoRoom - b.MergeNoRoom, late: is.pod["TCPOFOQueue"] - was.pod["TCPOFOQueue"], resent: is.peer["RetransSegs"] - was.peer["RetransSegs"],
		taken: is.peer["TCPFastRetrans"] - was.peer["TCPFastRetrans"],
	}
	t.Logf("%d packets split into %d micro-flows, %d times begun; merge: %d passed, %d held, %d gaps, %d expired, %d unwatched, %d dropped; in the pods: %d out of order, %d sent again, %d of them taken for lost; %d dropped on the way",
		d.split, d.microflows, d.splits, d.passed, d.held, d.gaps, d.expired, d.unwatched, d.out, d.late, d.resent, d.taken, d.lost)
	return d
}

// row is a way in which flows are split.
type row struct {
	batch, lanes, flows int
	top                 topology
	tier                governor.Tier // where they are cut
}

func (r row) String() string {
	at := map[governor.Tier]string{governor.XDP: "xdp", governor.TC: "tc"}[r.tier]
	return fmt.Sprintf("%s, %d frames, %d lanes, %d flows, %s", at, r.batch, r.lanes, r.flows, r.top)
}

// brief are the rows that run every time, on two cores; all are for machines with more.
var (
	brief = []row{
		{8, 1, 1, apart, governor.XDP}, {44, 1, 8, routed, governor.XDP}, {128, 1, 1, bridged, governor.XDP}, {8, 1, 8, bridged, governor.TC},
	}
	all = []row{
		{8, 2, 1, bridged, governor.XDP}, {8, 4, 8, routed, governor.XDP}, {8, 2, 8, apart, governor.XDP},
		{44, 4, 1, bridged, governor.XDP}, {44, 2, 8, routed, governor.XDP}, {44, 4, 1, apart, governor.XDP},
		{128, 2, 8, bridged, governor.XDP}, {128, 4, 1, routed, governor.XDP}, {128, 2, 1, apart, governor.XDP},
		{256, 4, 8, bridged, governor.XDP}, {256, 2, 1, routed, governor.XDP}, {256, 4, 8, apart, governor.XDP},
		{44, 2, 1, bridged, governor.TC}, {128, 4, 8, routed, governor.TC}, {256, 2, 8, apart, governor.TC},
	}
)

// In each run so many packets of split flows arrive at least, of which so many had to wait.
// On two emulated cores, where a packet takes longer, both are fewer.
const (
	enough   = 20_000
	some     = 8_000
	outOf    = 500
	fewer    = 100
	underWay = 256 << 10 // bytes, of all flows: the wire's ring holds them, most of the time
)

var runsOfAll = flag.Int("order-runs", 0, "so many runs of each row of the table of orders, instead of a few rows once")

// TestMerge is of flows that are split and put in order again.
func TestMerge(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds network namespaces and loads BPF programs")
	}
	if !merges() {
		t.Skip("needs a kernel with BPF qdiscs (Linux 6.16)")
	}
	type part struct {
		name string
		test func(*testing.T)
	}
	parts := []part{
		{"flows", flowsComeInOrder}, {"datagrams", datagramsComeInOrder}, {"datagrams late", datagramsOfABranchThatStandsStill},
		{"full backlog", whatWaitedFindsRoom}, {"faults", mergeStandsFaults},
		{"no pod", mergeLosesItsPod}, {"killed", mergeOutlivesItsDaemon}, {"offline", branchsCoreGoesOffline},
	}
	if *runsOfAll > 0 {
		parts = append(parts, part{"many datagrams", manyDatagramsComeInOrder}, part{"losses", lossesCostTheSame},
			part{"reordering", reorderingCostsTheSame}, part{"sizes", smallerComeLater})
	}
	for _, p := range parts {
		t.Run(p.name, p.test)
	}
}

func flowsComeInOrder(t *testing.T) {
	rows, runs := brief, 1
	if *runsOfAll > 0 {
		rows, runs = all, *runsOfAll
	}
	for _, r := range rows {
		t.Run(r.String(), func(t *testing.T) { r.run(t, runs) })
	}
}

func (r row) run(t *testing.T, runs int) {
	s := lay(t, r.top)
	residue.Check(t, s.all())
	s.begin(t, splits(r.tier, r.batch, r.lanes))
	// A flow that is not split, beside them, and a process in the pod.
	small := s.stream(t, v4)
	small.reach(t, 20)
	// Else a socket has a super-packet more under way than it should.
	if err := s.hosts[0].pod.Do(func() error { return segmentEarly(podDev) }); err != nil {
		t.Fatal(err)
	}
	var flows []*pour
	for range r.flows {
		flows = append(flows, s.pourAtMost(t, v4, underWay/r.flows))
	}
	s.allSplit(t, flows)
	begin := s.count(t)
	// Runs in which the wire's ring was full show less. What follows from it belongs to them.
	clean, was := 0, begin
	for n := 0; clean < runs && n < 3*runs; n++ {
		packets, least := uint64(some), uint64(fewer)
		if *runsOfAll > 0 {
			packets, least = enough, outOf
		}
		price(t, func() { s.pass(t, was, packets, least) })
		for last := was; s.count(t).lost != last.lost; {
			last = s.count(t)
			s.pass(t, last, packets/20, 0)
		}
		d := s.since(t, was)
		d.inOrder(t)
		if d.lost == 0 {
			clean++
		}
		was = d.end
	}
	t.Logf("%d runs lost nothing", clean)
	small.reach(t, 20)
	s.drain(t)
	for _, p := range flows {
		p.reach(t, 64<<10)
		p.finish(t)
	}
	small.finishWith(t, s.count(t).lostBy-begin.lost)
	s.end(t)
}

// allSplit waits until one flow has been split, by begin, and all of these.
func (s *splitting) allSplit(t *testing.T, flows []*pour) {
	t.Helper()
	begun := time.Now()
	defer func() {
		if !t.Failed() {
			return
		}
		t.Logf("in %v %d flows began to be split: %+v", time.Since(begun), s.d.Status().Counters.Splits, s.d.Status().Counters)
		for _, p := range flows {
			t.Logf("%d bytes of one came, the longest pause was %v", p.got.Load(), time.Duration(p.pause.Load()))
		}
	}()
	until(t, "all are split", func() bool { return s.d.Status().Counters.Splits > uint64(len(flows)) })
}

// drain has the daemon take its hands off all flows, which go on meanwhile, in order.
func (s *splitting) drain(t *testing.T) {
	t.Helper()
	was := s.count(t)
	s.use(t, s.d, 0)
	until(t, "flows are drained", func() bool { return len(s.d.Status().Lanes) == 0 })
	if d := s.since(t, was); d.late != 0 && d.lost+d.expired+d.unwatched == 0 {
		t.Errorf("%d segments came out of order as they drained", d.late)
	}
}

// pass waits until so many packets have passed the resequencer, and so many of them have waited
// there.
func (s *splitting) pass(t *testing.T, was tally, all, least uint64) {
	t.Helper()
	defer func() {
		if t.Failed() {
			s.since(t, was)
		}
	}()
	until(t, fmt.Sprintf("%d packets, %d of which waited", all, least), func() bool {
		c := s.d.Status().Counters
		held := c.MergeHeld - was.daemon.MergeHeld
		return c.MergePassed-was.daemon.MergePassed+held >= all && held >= least
	})
}

// UDP is put in order by numbers: also what a branch brings late, and beside losses.
func datagramsComeInOrder(t *testing.T) {
	s := split(t, 16)
	u := s.send(t, v4, 64, 4*time.Millisecond)
	was := s.count(t)
	until(t, "datagrams wait for others", func() bool { return s.d.Status().Counters.MergeHeld > was.daemon.MergeHeld })
	was = s.count(t)
	u.reach(t, 10_000)
	for range 5 {
		hog(t, 1, 30*time.Millisecond)
		u.reach(t, 500)
	}
	loss, err := wire.DropEvery(s.hosts[1].ns, wireDev, 100)
	if err != nil {
		t.Fatal(err)
	}
	u.reach(t, 10_000)
	lost, err := loss.End()
	if err != nil {
		t.Fatal(err)
	}
	d := s.since(t, was)
	u.reach(t, 100)
	s.end(t)
	u.reach(t, 100)
	if d.expired+d.unwatched > 0 {
		t.Log("a core stood still for longer than packets wait: order is not judged")
		u.finishLate(t, lost)
	} else {
		u.finishWith(t, lost)
	}
	if d.held == 0 || d.gaps == 0 {
		t.Errorf("%d packets waited, and %d times one was not waited for; %d were lost", d.held, d.gaps, lost)
	}
}

// What waits longer than the limit goes, late ones are counted, and then all is in order again.
// A core that stands still has no room for the whole flow: its backlog may drop some.
func datagramsOfABranchThatStandsStill(t *testing.T) {
	dropped := backlogDrops(t)
	s := lay(t, bridged)
	residue.Check(t, s.all())
	s.begin(t, func(opts *daemon.Options) {
		splits(governor.XDP, 16, 1)(opts)
		opts.Pipeline.Microflows.Hold = usual
	})
	u := s.send(t, v4, 64, 4*time.Millisecond)
	was := s.count(t)
	until(t, "datagrams do not wait any longer", func() bool {
		hog(t, 1, 3*usual)
		return s.d.Status().Counters.MergeExpired > was.daemon.MergeExpired
	})
	u.reach(t, 5000) // those that were under way have come
	was, late := s.count(t), u.late.Load()
	u.reach(t, 5000)
	d := s.since(t, was)
	if n := u.late.Load() - late; n != 0 && d.expired == 0 {
		t.Errorf("%d datagrams came late once the branch went on", n)
	}
	s.end(t)
	backlogs := dropped()
	u.finishLate(t, d.end.daemon.MergeNoRoom+d.end.daemon.MergeRefused+backlogs)
	t.Logf("%d datagrams came late, backlogs dropped %d packets", u.late.Load(), backlogs)
}

// inOrder asks that packets had to wait, and none came out of order. What was lost, and a
// core that stood still for longer than packets wait, are the excuses, and counted.
func (d toll) inOrder(t *testing.T) {
	t.Helper()
	if d.held == 0 {
		t.Error("no packet had to wait: nothing was put in order")
	}
	if d.late+d.taken != 0 && d.lost+d.expired+d.unwatched == 0 {
		t.Errorf("%d segments came out of order, %d were taken for lost", d.late, d.taken)
	}
}
