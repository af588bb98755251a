// SPDX-License-Identifier: Apache-2.0

package order

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/patience"
	"github.com/overlane/overlane/test/residue"
)

const (
	// sparsePort is that of a plain flow of few datagrams beside a mixture.
	sparsePort = traffic.Port + 1
	// mixed is how many times a flow of a mixture sends in each of two patterns.
	mixed = 3000
	// together are datagrams that are sent one behind the other, and mostUnderWay how many may be on their way before
	// the next are: with as many frames as these can be the wire's ring is never full.
	together, mostUnderWay = 32, 64
)

// acting is what acts in a column of the table.
type acting struct {
	name   string
	brief  bool // part of a short run
	config string
	nic    bed.NIC // empty: in both poll modes
	// helped counts what it has done.
	helped func(control.Counters) uint64
	// sparse: a flow that the configuration makes latency traffic goes beside.
	sparse bool
	// standsAside: from flows that it would not keep in order, for minutes. So each mixture meets a daemon of its own.
	standsAside bool
	// begun: it acts before it sees a mixture, and may reorder that until it stands aside.
	begun bool
}

// allowances are the cells in which KNOWN_ISSUES.md allows that datagrams are overtaken, and why.
var allowances = []struct {
	mixtures, actings []string
	why               string
}{
	{[]string{"outer fragments", "outer options"}, []string{"pipeline", "pipeline, xdp", "pipeline, aggregate", "priority, bulk", "priority, no threads", "express", "express, aggregate"},
		"outer fragments and options take the kernel's path"},
}

// allowed says why datagrams may be late in a cell, if they may.
func allowed(mixture, acting string) string {
	for _, a := range allowances {
		if slices.Contains(a.mixtures, mixture) && slices.Contains(a.actings, acting) {
			return a.why
		}
	}
	return ""
}

const mixtureOnly = "metrics: off\nmicroflows: {mode: off}\n"

// alone is a configuration in which nothing acts but what it names.
func alone(config string) string {
	for _, line := range []string{"pipeline: off\n", "aggregate: off\n", "priority: {mode: off}\n"} {
		if key, _, _ := strings.Cut(line, " "); !strings.Contains(config, key) {
			config += line
		}
	}
	return mixtureOnly + config
}

func latencyPort(port int) string {
	return fmt.Sprintf("rules: [{name: mixture, proto: udp, port: %d}]", port)
}

func aggregatedOf(c control.Counters) uint64 { return c.AggregatedPackets }
func steeredOf(c control.Counters) uint64    { return c.SteeredPackets }
func expressOf(c control.Counters) uint64    { return c.ExpressPackets }
func latencyOf(c control.Counters) uint64    { return c.LatencyPackets }
func bulkOf(c control.Counters) uint64       { return c.BulkLane }

var actings = []acting{
	{name: "none", brief: true},
	{name: "default", brief: true, helped: aggregatedOf, standsAside: true},
	{name: "aggregate", config: alone("aggregate: forced\n"), helped: aggregatedOf, standsAside: true, begun: true},
	{name: "pipeline", brief: true, config: alone("pipeline: forced\ntier: tc\n"), helped: steeredOf},
	{name: "pipeline, xdp", config: alone("pipeline: forced\ntier: xdp\n"), helped: steeredOf},
	{name: "pipeline, aggregate", config: alone("pipeline: forced\ntier: tc\naggregate: forced\n"), helped: aggregatedOf, standsAside: true, begun: true},
	{name: "priority", brief: true, config: alone("priority: {" + latencyPort(traffic.Port) + "}\n"), helped: latencyOf},
	{name: "priority, bulk", config: alone("priority: {" + latencyPort(sparsePort) + "}\n"), helped: bulkOf, sparse: true},
	{name: "priority, sync", config: alone("priority: {mode: sync, " + latencyPort(traffic.Port) + "}\n"), helped: latencyOf},
	{name: "priority, no threads", nic: bed.Softirq, config: alone("priority: {threads: off, " + latencyPort(traffic.Port) + "}\n"), helped: latencyOf},
	{name: "express", brief: true, config: alone("express: forced\n"), helped: expressOf},
	{name: "express, aggregate", config: alone("express: forced\naggregate: forced\n"), helped: expressOf, standsAside: true, begun: true},
	{name: "microflows", config: "metrics: off\npipeline: off\naggregate: off\npriority: {mode: off}\nmicroflows: {mode: forced, elephant: 1Mbit, cores: 2}\n",
		helped: func(c control.Counters) uint64 { return c.SplitPackets }},
}

// cell is what became of a mixture.
type cell struct {
	sent, received, late, twice, helped uint64
	// once of late were so until aggregation stood aside.
	once uint64
	// requeued are frames that the wire handed back to the sender, and may have overtaken (bed.WireStats): none, or a core
	// has stood still.
	requeued uint64
}

func (c cell) lost() int64 { return int64(c.sent) - int64(c.received) }

func (c cell) String() string {
	if c.sent == 0 {
		return "–"
	}
	said := "0"
	if c.late > 0 || c.lost() != 0 || c.twice > 0 {
		said = fmt.Sprintf("**%d late, %d lost**", c.late, c.lost())
	}
	if c.once > 0 && c.once == c.late && c.lost() == 0 && c.twice == 0 {
		said = fmt.Sprintf("%d once", c.once)
	}
	if c.twice > 0 {
		said += fmt.Sprintf(", %d twice", c.twice)
	}
	return fmt.Sprintf("%s (%d %%)", said, 100*min(c.helped, c.sent)/c.sent)
}

// A flow is in order, and complete, whatever its datagrams are: small ones, and among them such as a mechanism cannot
// treat like these. Each mixture is a flow of its own, which is plain until the mechanism acts on it.
func TestMixturesKeepOrder(t *testing.T) {
	rig.NeedCores(t, 2)
	kinds := mixtures()
	for _, nic := range []bed.NIC{bed.Thread, bed.Softirq} {
		t.Run(string(nic), func(t *testing.T) {
			b := rig.Lab(t, bed.Options{NIC: nic, Pods: 2, IPv6: true})
			table := map[string]map[string]cell{}
			for _, a := range actings {
				if a.nic != "" && a.nic != nic || testing.Short() && !a.brief {
					continue
				}
				t.Run(a.name, func(t *testing.T) {
					table[a.name] = map[string]cell{}
					a.in(t, b, kinds, table)
				})
			}
			t.Logf("polled by: %s\n%s", nic, mixtureTable(kinds, table))
		})
	}
}

// in sends all mixtures while it acts.
func (a acting) in(t *testing.T, b *bed.Bed, kinds []mixture, table map[string]map[string]cell) {
	must(t, b.Reset())
	residue.Check(t, rig.Scope(b))
	check, err := traffic.NewChecker(-1)
	must(t, err)
	t.Cleanup(func() { must(t, check.Close()) })
	sockets, err := listeners(b, check)
	t.Cleanup(func() {
		for _, s := range sockets {
			unix.Close(s)
		}
	})
	must(t, err)
	c := &chat{bed: b, check: check, acting: a, crate: rig.NewCrate(t, b)}
	c.wire, err = wireSocket(b)
	must(t, err)
	t.Cleanup(func() { unix.Close(c.wire) })
	if a.helped != nil && !a.standsAside {
		c.starts(t)
		if st, err := c.daemon.Peek(); a.name == "microflows" && err == nil && st.Mechanism("microflows").State == control.Unsupported {
			t.Skip(st.Mechanism("microflows").Reason)
		}
		must(t, c.begins())
	}
	for _, m := range kinds {
		if testing.Short() && !m.brief {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			if a.standsAside {
				c.starts(t)
				defer c.ends()
			}
			got, err := c.hold(m)
			if errors.Is(err, unix.EPROTONOSUPPORT) {
				t.Skip("the kernel has no UDP-Lite")
			}
			must(t, err)
			table[a.name][m.name] = got
			// What the kernel reorders by itself is not the mechanism's.
			without := table["none"][m.name]
			if got.late > without.late+got.once+got.requeued && allowed(m.name, a.name) == "" {
				t.Errorf("%d of %d datagrams came behind a later one of their flow, %d without", got.late, got.sent, without.late)
			}
			if got.lost() != 0 || got.twice > 0 {
				t.Errorf("of %d datagrams %d are lost, and %d came twice", got.sent, got.lost(), got.twice)
			}
		})
	}
	c.ends()
}

// starts starts the daemon.
func (c *chat) starts(t *testing.T) {
	c.daemon = rig.Start(t, rig.Spec{NS: c.bed.Receiver().NS, Program: program(t), Config: c.config})
}

// ends ends it, if there is one.
func (c *chat) ends() {
	if c.daemon != nil {
		c.daemon.Signal(unix.SIGTERM)
		c.daemon.GoneBoth()
		c.daemon = nil
	}
}

// chat has mixtures sent and checked, one after the other.
type chat struct {
	acting
	bed     *bed.Bed
	check   *traffic.Checker
	daemon  *rig.Daemon // nil: none
	crate   *rig.Crate
	wire    int       // sends frames at the sender's NIC
	flows   int       // so far
	empty   uint64    // so far
	talkers []*talker // of this mixture
	pause   *talker   // the sparse flow, or nil
	missing int64     // given up
}

// begins sends a plain flow until it acts.
func (c *chat) begins() error {
	begun := time.Now()
	_, err := c.with(mixture{odd: sized(plainSize)}, func() error {
		for {
			helped, err := c.done()
			if helped > 1000 || err != nil {
				return err
			}
			if time.Since(begun) > rig.Patience {
				st, err := c.daemon.Peek()
				return errors.Join(err, fmt.Errorf("it does not act within %s: %+v", rig.Patience, st.Mechanisms))
			}
			if err := c.plain(1000); err != nil {
				return err
			}
		}
	})
	return err
}

// done is how much it has done so far.
func (c *chat) done() (uint64, error) {
	if c.daemon == nil {
		return 0, nil
	}
	st, err := c.daemon.Peek()
	return c.helped(st.Counters), err
}

// aside tells whether aggregation stands aside from a flow that it would not keep in order.
func (c *chat) aside() (bool, error) {
	st, err := c.daemon.Peek()
	return strings.Contains(st.Mechanism("aggregate").Reason, "would overtake"), err
}

// sixteenth has each sixteenth datagram be odd, eighth one in eight by chance.
func sixteenth(i int, _ *talker) bool { return i%16 == 15 }
func eighth(_ int, f *talker) bool    { return f.rnd.IntN(8) == 0 }

// meets sends a mixture from its flow's first datagram on, until it is helped or aggregation stands aside.
func (c *chat) meets() (late uint64, err error) {
	for begun := time.Now(); ; {
		if err := c.send(500, sixteenth); err != nil {
			return 0, err
		}
		helped, err := c.done()
		if err != nil {
			return 0, err
		}
		aside, err := c.aside()
		switch {
		case err != nil:
			return 0, err
		case aside && c.begun:
			for _, f := range c.talkers {
				v, err := c.check.Flow(int(f.flow))
				if err != nil {
					return 0, err
				}
				late += v.Reordered
			}
			return late, nil
		case aside || helped > 1000 && !c.begun || time.Since(begun) > patience.For(2*time.Second):
			return 0, nil
		}
	}
}

// hold sends a mixture. It is plain at first, until it is seen to be helped; then each sixteenth is odd; then any; and it
// is plain again.
func (c *chat) hold(m mixture) (got cell, err error) {
	if m.wireMTU != 0 {
		if err := setMTU(c.bed.Sender(), m.wireMTU); err != nil {
			return got, err
		}
		defer func() { err = errors.Join(err, setMTU(c.bed.Sender(), bed.WireMTU)) }()
	}
	var once uint64
	got, err = c.with(m, func() error {
		if c.standsAside {
			var err error
			once, err = c.meets()
			return errors.Join(err, c.patterns())
		}
		before, err := c.done()
		if err != nil {
			return err
		}
		// Of a flow that is not helped nothing tells.
		for begun := time.Now(); ; {
			if err := c.plain(1000); err != nil {
				return err
			}
			helped, err := c.done()
			if err != nil {
				return err
			}
			if c.daemon == nil || helped > before+1000 || time.Since(begun) > patience.For(300*time.Millisecond) {
				break
			}
		}
		return c.patterns()
	})
	got.once = once
	return got, err
}

// patterns sends a mixture in two ways, and then plain.
func (c *chat) patterns() error {
	for _, odd := range []func(int, *talker) bool{sixteenth, eighth} {
		if err := c.send(mixed, odd); err != nil {
			return err
		}
	}
	return c.plain(500)
}

// with opens the flows of a mixture, sends from its pod, and tells what came of it.
func (c *chat) with(m mixture, send func() error) (got cell, err error) {
	from, to := c.bed.Sender().Pods[0], c.bed.Receiver().Pods[0]
	if m.local {
		from = c.bed.Receiver().Pods[1]
	}
	first := c.flows
	alien, _, err := c.check.Alien()
	if err != nil {
		return got, err
	}
	c.empty, c.talkers, c.pause, c.missing = alien, nil, nil, 0
	before, err := c.done()
	if err != nil {
		return got, err
	}
	stats, err := c.bed.WireStats()
	if err != nil {
		return got, err
	}
	err = from.NS.Do(func() (err error) {
		if err := c.settle(); err != nil {
			return err
		}
		defer func() {
			for _, f := range c.talkers {
				err = errors.Join(err, unix.Close(f.fd))
			}
		}()
		open := func(proto int, m mixture, port uint16) (*talker, error) {
			src, dst := from.IP4, to.IP4
			if m.v6 {
				src, dst = from.IP6, to.IP6
			}
			f, err := newTalker(c.flows, proto, src, dst, port)
			if err != nil {
				return nil, err
			}
			f.odd = m.odd
			if m.bare {
				f.crate, f.wire = c.crate, c.wire
			}
			c.flows++
			c.talkers = append(c.talkers, f)
			return f, nil
		}
		for _, one := range append([]mixture{m}, m.beside...) {
			if _, err := open(unix.IPPROTO_UDP, one, traffic.Port); err != nil {
				return err
			}
		}
		if m.lite {
			lite, err := open(protoLite, mixture{}, traffic.Port)
			if err != nil {
				return err
			}
			c.talkers[0].odd = func(*talker) error { return lite.say(plainSize) }
			lite.odd = nil
		}
		if c.sparse {
			if c.pause, err = open(unix.IPPROTO_UDP, mixture{}, sparsePort); err != nil {
				return err
			}
		}
		return send()
	})
	if err != nil {
		return got, err
	}
	got.sent = c.sent()
	rig.AwaitAll(got.sent, func() uint64 {
		got.received, err = c.received()
		return got.received
	})
	for id := first; id < c.flows && err == nil; id++ {
		var v traffic.Verdict
		v, err = c.check.Flow(id)
		got.late += v.Reordered
		got.twice += v.Duplicated + v.Stale
	}
	after, derr := c.done()
	now, werr := c.bed.WireStats()
	got.helped, got.requeued = after-before, now.Requeued-stats.Requeued
	_, corrupt, aerr := c.check.Alien()
	if corrupt > 0 {
		err = errors.Join(err, fmt.Errorf("%d datagrams were changed", corrupt))
	}
	return got, errors.Join(err, derr, werr, aerr)
}

// sent and received are of the flows of this mixture.
func (c *chat) sent() (n uint64) {
	for _, f := range c.talkers {
		n += f.next + f.none
	}
	return n
}

func (c *chat) received() (n uint64, err error) {
	for _, f := range c.talkers {
		v, err := c.check.Flow(int(f.flow))
		if err != nil {
			return 0, err
		}
		n += v.Received
	}
	alien, _, err := c.check.Alien()
	return n + alien - c.empty, err
}

// plain sends so many datagrams like each other.
func (c *chat) plain(n int) error { return c.send(n, func(int, *talker) bool { return false }) }

// send has the flows send in turn, with an odd one where that says so. It sends as many at once as the wire holds, and
// waits until they have come.
func (c *chat) send(n int, odd func(int, *talker) bool) error {
	free := c.sent() + together
	for i := range n {
		for _, f := range c.talkers {
			if f.odd == nil {
				continue
			}
			what := (*talker).plain
			if odd(i, f) {
				what = f.odd
			}
			if err := what(f); err != nil {
				return fmt.Errorf("send: %w", err)
			}
		}
		if c.sent() < free {
			continue
		}
		if c.pause != nil {
			if err := c.pause.say(plainSize); err != nil {
				return err
			}
		}
		if err := c.awaitRoom(); err != nil {
			return err
		}
		free = c.sent() + together
	}
	return nil
}

// awaitRoom waits until little is on its way. What does not come for long is not waited for again.
func (c *chat) awaitRoom() error {
	begun := time.Now()
	for {
		got, err := c.received()
		if err != nil {
			return err
		}
		way := int64(c.sent()-got) - c.missing
		if way <= mostUnderWay {
			return nil
		}
		if time.Since(begun) > patience.For(100*time.Millisecond) {
			c.missing += way
			return nil
		}
		time.Sleep(20 * time.Microsecond) // or what receives them would not run
	}
}

// settle gives the calling thread the core that feeds the wire. A NIC that a thread polls finds more than a frame at a time
// when that thread has to wait until all are sent: it shares the core with what sends them, in real time, where a thread
// may be that.
func (c *chat) settle() error {
	cores := c.bed.PlaceCores()
	core := cores.Gen[0]
	if c.bed.NIC == bed.Thread {
		switch err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 2}, 0); {
		case err == nil:
			core = cores.NIC[0]
		case !errors.Is(err, unix.EPERM):
			return err
		}
	}
	var set unix.CPUSet
	set.Set(core)
	return unix.SchedSetaffinity(0, &set)
}

// setMTU sets that of a host's NIC.
func setMTU(h *bed.Host, mtu int) error {
	return h.NS.Do(func() error {
		l, err := netlink.LinkByName(h.Wire)
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(l, mtu)
	})
}

// mixtureTable is what became of each mixture that was sent with each mechanism: late and lost, and how much of it was
// helped.
func mixtureTable(kinds []mixture, table map[string]map[string]cell) string {
	acted := slices.DeleteFunc(slices.Clone(actings), func(a acting) bool { return len(table[a.name]) == 0 })
	var b strings.Builder
	fmt.Fprint(&b, "| mixture |")
	for _, a := range acted {
		fmt.Fprintf(&b, " %s |", a.name)
	}
	fmt.Fprint(&b, " may be late |")
	for _, m := range kinds {
		if !slices.ContainsFunc(acted, func(a acting) bool { return table[a.name][m.name].sent > 0 }) {
			continue
		}
		fmt.Fprintf(&b, "\n| %s |", m.name)
		for _, a := range acted {
			fmt.Fprintf(&b, " %s |", table[a.name][m.name])
		}
		var may []string
		for _, a := range acted {
			if why := allowed(m.name, a.name); why != "" && !slices.Contains(may, why) {
				may = append(may, why)
			}
		}
		fmt.Fprintf(&b, " %s |", cmp.Or(strings.Join(may, "; "), "no"))
	}
	return b.String()
}
