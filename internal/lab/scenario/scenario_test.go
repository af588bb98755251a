// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/datagram"
	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/snmp"
	"github.com/overlane/overlane/test/speed"
	"github.com/overlane/overlane/test/wire"
)

var serial int

// newEnv builds a bed and an env in its plain overlay.
func newEnv(t *testing.T, o bed.Options, cfg Config) *env {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds network namespaces")
	}
	serial++
	o.Name, o.StateDir = fmt.Sprintf("s%dx%d", os.Getpid()%100000, serial), filepath.Join(t.TempDir(), "lab")
	b, err := bed.Up(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Down(); err != nil {
			t.Error(err)
		}
	})
	cfg.eager = true
	if err := cfg.Normalize(b.NIC); err != nil {
		t.Fatal(err)
	}
	clock, err := traffic.NewCPUClock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { clock.Close() })
	return &env{bed: b, cfg: &cfg, cores: b.Cores, clock: clock, overlay: true, settle: 50 * time.Millisecond,
		offers: map[string]float64{}}
}

const short = 150 * time.Millisecond

// With fewer frames under way than any queue holds, nothing may get lost.
func TestCheckedPacketsCrossEveryTopology(t *testing.T) {
	type way struct {
		opt   bed.Options
		flows int
		size  int
		host  bool
	}
	ways := map[string]way{
		"host":        {host: true, flows: 1, size: small},
		"softirq":     {opt: bed.Options{NIC: bed.Softirq}, flows: 1, size: small},
		"two queues":  {opt: bed.Options{Queues: 2, Pods: 2}, flows: 4, size: small},
		"smallest":    {flows: 1, size: datagram.MinSize},
		"fragments":   {flows: 2, size: 4 * kb},
		"fragments64": {flows: 1, size: 65000},
	}
	for _, topo := range []bed.Topology{bed.Bridged, bed.Routed, bed.Nested} {
		for _, v6 := range []bool{false, true} {
			ways[fmt.Sprintf("%s, ipv6 %t", topo, v6)] = way{opt: bed.Options{Topology: topo, IPv6: v6, Pods: 2}, flows: 3, size: small}
		}
	}
	for name, w := range ways {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, w.opt, Config{Scenario: "udp-one"})
			e.overlay = !w.host
			got, err := e.live(t.Context(), offer{flows: w.flows, size: w.size, window: window, batch: 16, length: short, patience: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			if got.total.Received == 0 || got.total.Received != got.offered || got.accepted < got.offered {
				t.Errorf("%d sent, %d on the wire, %d received", got.offered, got.accepted, got.total.Received)
			}
			if bad := got.total; bad.Reordered+bad.Duplicated+bad.Stale+bad.Missing > 0 {
				t.Errorf("verdict: %+v", bad)
			}
		})
	}
}

// What a program gets is what counts, not what its socket has seen.
func TestReadersReadWhatArrives(t *testing.T) {
	for name, host := range map[string]bool{"overlay": false, "host": true} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, bed.Options{Pods: 2}, Config{Scenario: "udp-read"})
			e.overlay = !host
			before, err := e.bed.WireStats()
			if err != nil {
				t.Fatal(err)
			}
			got, err := e.live(t.Context(), offer{flows: 3, size: small, rate: 5e3, length: short, read: true})
			if err != nil {
				t.Fatal(err)
			}
			after, err := e.bed.WireStats()
			if err != nil {
				t.Fatal(err)
			}
			taken := got.offered - (after.RxDropped - before.RxDropped) // a busy machine
			goals := 0
			for _, at := range e.goals() {
				c, err := snmp.Read(at.NS)
				if err != nil {
					t.Fatal(err)
				}
				if n := snmp.Sum(c.Udp.InDatagrams); n > 0 {
					goals++
				}
				got.read += snmp.Sum(c.Udp.RcvbufErrors) // the same
			}
			if want := map[bool]int{true: 1, false: 2}[host]; goals != want || got.read == 0 || got.read != taken || got.total.Received != taken {
				t.Errorf("%d taken by the NIC, %d seen, %d read or without room, at %d sockets of %d", taken, got.total.Received, got.read, goals, want)
			}
			if bad := got.total; bad.Reordered+bad.Duplicated+bad.Stale+bad.Missing > 0 || got.delivered > got.read {
				t.Errorf("verdict: %+v, %d delivered", bad, got.delivered)
			}
		})
	}
}

// The daemon makes lanes of the nic stage once there is traffic: they are looked for when it has settled.
func TestThreadsAreCountedOnceTrafficHasSettled(t *testing.T) {
	e := newEnv(t, bed.Options{}, Config{Scenario: "udp-one"})
	before, err := e.bed.WireStats()
	if err != nil {
		t.Fatal(err)
	}
	e.settle = time.Second // the generator's first frame is there by then, on a busy machine, too
	var came uint64
	e.threads = func() ([]int, error) {
		w, err := e.bed.WireStats()
		came = w.RxPackets - before.RxPackets
		return nil, err
	}
	if _, err := e.live(t.Context(), offer{flows: 1, size: small, rate: 20e3, length: short}); err != nil {
		t.Fatal(err)
	}
	if came == 0 {
		t.Error("threads were looked for before a packet had come")
	}
}

// On a machine with cores to spare what the sending host does is not on those that are judged.
func TestTheSendersWorkStaysOnItsCore(t *testing.T) {
	if err := traffic.Installed("iperf3"); err != nil {
		t.Skip(err)
	}
	e := newEnv(t, bed.Options{}, Config{Scenario: "tcp-one", Length: time.Second})
	if runtime.NumCPU() < 2 {
		t.Skip("needs two cores")
	}
	e.bed.Cores = bed.Cores{NIC: []int{0}, Gen: []int{1}, Paced: 1, Sender: 1, Steer: []int{0}, Apps: 0, Servers: []int{0}}
	e.cores = e.bed.Cores
	if err := e.bed.Reset(); err != nil {
		t.Fatal(err)
	}
	for _, streams := range []int{1, 4} {
		e.cfg.Flows = streams
		var looks []traffic.Look
		e.profiled = &looks
		values, err := measureTCP(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		// Its acknowledgements are the receiving host's.
		// And what has waited for the wire goes on where room was made.
		sends := []string{"tcp_write_xmit", "tcp_ack", "skb_segment"}
		var on [2]time.Duration
		for _, l := range looks {
			if l.Core < 2 && slices.ContainsFunc(l.Stack, func(f string) bool { return slices.Contains(sends, f) }) {
				on[l.Core] += l.Spent
			}
		}
		t.Logf("%d connections, %.2f Gb/s: %s on the NIC's core, %s on the sender's", streams, values[report.Gbps], on[0], on[1])
		if on[1] == 0 || on[0] > on[1]/50 {
			t.Errorf("%d connections: the sending host works for %s on the NIC's core, and for %s on its own", streams, on[0], on[1])
		}
	}
}

// Sizes that come by chance, whose headers have to fit each: the stack looks at the checksums.
func TestDatagramsOfMixedSizesArrive(t *testing.T) {
	for name, host := range map[string]bool{"overlay": false, "host": true} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, bed.Options{}, Config{Scenario: "udp-mixed"})
			e.overlay = !host
			wire := e.bed.Receiver().Wire
			before := received(t, e.bed.Receiver().NS, wire)
			got, err := e.live(t.Context(), offer{flows: 3, size: 1400, mixed: []int{512, small}, window: window, batch: 16, length: short, patience: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			if got.total.Received < 1000 || got.total.Received != got.offered || got.total.Reordered+got.total.Stale+got.total.Missing > 0 {
				t.Errorf("%d sent, verdict: %+v", got.offered, got.total)
			}
			after := received(t, e.bed.Receiver().NS, wire)
			headers := 42.0
			if !host {
				headers = 92
			}
			mean := float64(after.RxBytes-before.RxBytes)/float64(after.RxPackets-before.RxPackets) - headers
			if want := (1400 + 512 + small) / 3.0; mean < 0.8*want || mean > 1.2*want {
				t.Errorf("datagrams of %.0f bytes, want %.0f in the mean", mean, want)
			}
		})
	}
}

func received(t *testing.T, ns *netns.Handle, dev string) netlink.LinkStatistics {
	t.Helper()
	var stats netlink.LinkStatistics
	if err := ns.Do(func() error {
		l, err := netlink.LinkByName(dev)
		if err == nil {
			stats = *l.Attrs().Statistics
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return stats
}

func TestLossInThePathIsFoundToThePacket(t *testing.T) {
	e := newEnv(t, bed.Options{}, Config{Scenario: "udp-one"})
	rx := e.bed.Receiver()
	loss, err := wire.DropEvery(rx.Overlay, bed.Tunnel, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer loss.Close()
	got, err := e.live(t.Context(), offer{flows: 1, size: small, rate: 50e3, length: short})
	if err != nil {
		t.Fatal(err)
	}
	dropped, err := loss.Dropped()
	if err != nil {
		t.Fatal(err)
	}
	if dropped == 0 || got.accepted != got.total.Received+dropped {
		t.Errorf("%d on the wire, %d received, %d dropped between", got.accepted, got.total.Received, dropped)
	}
	if got.total.Reordered+got.total.Duplicated > 0 {
		t.Errorf("verdict: %+v", got.total)
	}
}

// RPS that jumps between cores without a guard is what breaks order in life.
func TestRealReorderingIsSeen(t *testing.T) {
	e := newEnv(t, bed.Options{}, Config{Scenario: "udp-one"})
	if len(e.cores.Steer) < 2 {
		t.Skip("needs two cores")
	}
	rx := e.bed.Receiver()
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	for ctx.Err() == nil {
		jumps := make(chan error, 1)
		jumping, calm := context.WithCancel(ctx)
		go func() {
			var err error
			for i := 0; err == nil && jumping.Err() == nil; i++ {
				err = errors.Join(
					bed.SetRPS(rx.Overlay, bed.Tunnel, e.cores.Steer[i%2:i%2+1]),
					bed.SetRPS(rx.Pods[0].NS, bed.PodDev, e.cores.Steer[(i+1)%2:(i+1)%2+1]))
			}
			jumps <- err
		}()
		got, err := e.live(ctx, offer{flows: 1, size: small, length: 300 * time.Millisecond})
		calm()
		if err := errors.Join(err, <-jumps); err != nil {
			t.Fatal(err)
		}
		if got.total.Reordered > 0 {
			return
		}
	}
	t.Error("no reordering in 20 s of RPS masks that jump")
}

func TestEveryScenarioGivesItsMetrics(t *testing.T) {
	speed.Turn(t)
	e := newEnv(t, bed.Options{}, Config{Scenario: "udp-one"})
	type row struct {
		name string
		want []string
	}
	table := []row{
		{"udp-one", []string{report.KPPS, report.CPUPerMpkt, report.Reordered, report.Duplicated, report.Dropped, report.GeneratorIdle}},
		{"udp-many", []string{report.KPPS, report.CPUPerMpkt, report.Reordered, report.Duplicated, report.Dropped}},
		{"udp-mixed", []string{report.KPPS, report.CPUPerMpkt, report.Reordered, report.Duplicated, report.Dropped}},
		{"udp-read", []string{report.KPPS, report.Unread, report.CPUPerMpkt, report.Reordered, report.Duplicated, report.Dropped, report.GeneratorIdle}},
		{"udp-large", []string{report.KPPS, report.Gbps, report.CPUPerMpkt, report.Reordered}},
		{"tcp-one", []string{report.Gbps, report.Retransmits, report.OFO, report.SACKReorder, report.CPUPerGB}},
		{"tcp-many", []string{report.Gbps, report.Retransmits, report.CoreSpread}},
		{"tcp-sizes", []string{report.Gbps, report.CPUPerGB}},
		{"latency-idle", []string{report.P50, report.P99, report.P999}},
		{"latency-load", []string{report.P50, report.P99, report.P999, report.BulkKPPS, report.GeneratorIdle}},
		{"latency-busy", []string{report.P50, report.P99, report.BulkKPPS}},
		{"latency-sweep", []string{report.P50, report.P99, report.BulkKPPS}},
		{"latency-rr", []string{report.RRP50, report.RRP99, report.RRP999, report.BulkKPPS}},
		{"latency-load-tcp", []string{report.P50, report.P99, report.BulkGbps}},
		{"memcached", []string{report.RPS, report.Avg, report.P50, report.P99, report.P999, report.BulkKPPS, "rps_bulk_kpps", report.Retransmits}},
		{"web", []string{report.RPS, report.Avg, report.P50, report.P99, report.P999, report.BulkGbps, "rps_bulk_gbps", report.MissedSlots}},
		{"streamline", []string{report.KPPS, report.Min, report.Mean, report.P50, report.P99, report.LossFreeKPPS, report.GeneratorIdle}},
		{"cross-check", []string{"p50_to_sockperf", "packet_to_sockperf", "sockperf_p50_us", "back_p50_us"}},
		{Stages, []string{report.KPPS, report.StageMetric(report.AllStages)}},
		{"overload", []string{report.KPPS, "x2_kpps", "x4_kpps", "kept_x2", "kept_x4"}},
	}
	for _, name := range names(scenarios) {
		if !slices.ContainsFunc(table, func(r row) bool { return r.name == name }) {
			t.Errorf("no row for %s", name)
		}
	}
	turn := speed.Every(t, 3)
	for _, tt := range table {
		if !turn() {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			s, _ := find(scenarios, tt.name)
			if err := s.possible(e.bed); err != nil {
				t.Skip(err)
			}
			one := *e
			cfg := Config{Scenario: tt.name, Length: 300 * time.Millisecond, eager: true}
			if err := cfg.Normalize(e.bed.NIC); err != nil {
				t.Fatal(err)
			}
			points := s.pointsFor(&cfg)
			points[len(points)-1].set(&cfg)
			if s.size > 0 {
				// Little, on whatever machine the test runs.
				cfg.Size, cfg.Load = s.size, min(cfg.Load, defaultLoad)
			}
			one.cfg, one.saturation = &cfg, 50e3
			if slices.Contains(s.programs, "iperf3") {
				one.saturation = 0.2 // Gb/s
			}
			if err := e.bed.Reset(); err != nil {
				t.Fatal(err)
			}
			got, err := s.measure(t.Context(), &one)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range tt.want {
				if x, ok := got[m]; !ok {
					t.Errorf("no %s in %v", m, got)
				} else if hasRate(m) && !(x > 0) {
					t.Errorf("%s is %g", m, x)
				}
			}
		})
	}
}

// hasRate tells metrics that are never zero in a run that worked. The loss-free rate is none:
// beside other work a machine may lose something at any rate.
func hasRate(metric string) bool {
	if metric == report.LossFreeKPPS {
		return false
	}
	return report.DirectionOf(metric) == report.Higher || metric == report.P50 || metric == report.RRP50
}

func TestVariantsAreInterleavedAndLeaveNothingToEachOther(t *testing.T) {
	speed.Turn(t)
	e := newEnv(t, bed.Options{NIC: bed.Softirq}, Config{Scenario: "udp-one"})
	var log strings.Builder
	results, err := Run(t.Context(), e.bed, Config{Scenario: "udp-one", Variants: []string{"overlay", "overlay-xdp", "rps", "threaded", "host"},
		Rounds: 2, Length: short, Log: &log, eager: true})
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for line := range strings.Lines(log.String()) {
		if f := strings.Fields(line); len(f) > 5 && f[1] == "round" {
			order = append(order, f[5])
		}
	}
	const want = "overlay overlay-xdp rps threaded host overlay overlay-xdp rps threaded host"
	if got := strings.Join(order, " "); got != want {
		t.Errorf("order %q, want %q", got, want)
	}
	for _, v := range results[0].Variants {
		if m := v.Metrics[report.KPPS]; m.Missing > 0 || !(m.Min > 0) {
			t.Errorf("%s: %+v", v.Name, m)
		}
	}
	// Reset itself fails when a program is left on the wire.
	if err := e.bed.Reset(); err != nil {
		t.Error(err)
	}
	if tids, err := e.bed.NAPIThreads(); err != nil || len(tids) > 0 {
		t.Errorf("NAPI threads of a softirq bed: %v %v", tids, err)
	}
}

func TestBestMaskIsFoundOnceAndRemembered(t *testing.T) {
	e := newEnv(t, bed.Options{}, Config{Scenario: "udp-one"})
	calls := 0
	s := scenario{name: "fake", measure: func(context.Context, *env) (map[string]float64, error) {
		calls++
		if calls == 3 {
			return map[string]float64{report.KPPS: 1000, report.Reordered: 1}, nil
		}
		return map[string]float64{report.KPPS: float64(calls % 7)}, nil
	}}
	for range 2 {
		if _, err := startBestRPS(t.Context(), e, s); err != nil {
			t.Fatal(err)
		}
	}
	if want := len(candidates(e.cores.Steer, true)) + finalists*finals; calls != want {
		t.Errorf("%d measurements, want %d", calls, want)
	}
}

func TestConfigIsRefusedWithWhatIsAllowed(t *testing.T) {
	for _, tc := range []struct {
		cfg  Config
		nic  bed.NIC
		want string
	}{
		{Config{Scenario: "udp"}, bed.Thread, "udp-one, udp-many"},
		{Config{Scenario: "udp-one", Variants: []string{"fast"}}, bed.Thread, "host, overlay"},
		{Config{Scenario: "udp-one", Variants: []string{"threaded"}}, bed.Thread, "needs --nic softirq"},
		{Config{Scenario: "udp-one", Variants: []string{"rps", "rps"}}, bed.Thread, "named twice"},
		{Config{Scenario: "udp-one", Rounds: -1}, bed.Thread, "at least 1 round"},
		{Config{Scenario: "udp-one", Rates: "odd"}, bed.Thread, "equal, skewed and shifting"},
		{Config{Scenario: "udp-one", Flows: 1000}, bed.Thread, "1 to 128"},
		{Config{Scenario: "latency-load", Load: 11}, bed.Thread, "0.01 to 10"},
		{Config{Scenario: "udp-one", Offer: 1}, bed.Thread, "1.05 to 4 times"},
		{Config{Scenario: "udp-one", Offer: 4.5}, bed.Thread, "1.05 to 4 times"},
		{Config{Scenario: "udp-one", Slow: 0.5}, bed.Thread, "1 to 100 times slower"},
		{Config{Scenario: "udp-one", Batch: 7}, bed.Thread, "micro-flows of 8 to 512 frames"},
	} {
		if err := tc.cfg.Normalize(tc.nic); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: got %v, want %q", tc.cfg, err, tc.want)
		}
	}
	cfg := Config{Scenario: "udp-one", Variants: []string{"all"}}
	if err := cfg.Normalize(bed.Thread); err != nil || len(cfg.Variants) != len(variants)-1 {
		t.Errorf("all: %v %v", cfg.Variants, err)
	}
}
