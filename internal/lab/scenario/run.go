// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/internal/lab/traffic"
)

// env is what a measurement works with.
type env struct {
	mixed []int // further sizes of datagrams
	bed   *bed.Bed
	cfg   *Config
	cores bed.Cores
	clock *traffic.CPUClock
	round int
	// variant is the running one's name; offers are those that saturate each, in
	// packets per second, as far as they have been looked for.
	variant string
	offers  map[string]float64
	// reason is why the variant did or did not act in the last measurement.
	reason string
	// overlay is false for traffic between the hosts themselves.
	overlay bool
	// threads of the running variant that receive packets, beside NAPI's.
	threads func() ([]int, error)
	// watch tells the running variant that a stretch of time that is measured
	// begins (true) or has ended; nil: the variant need not know.
	watch func(ctx context.Context, begins bool) error
	// profiled takes what the kernel was seen to do while it was measured; nil: the lab does not look.
	profiled *[]traffic.Look
	// checkerNS is what the checker costs for each datagram.
	checkerNS float64
	// saturation of the plain overlay: packets per second, or Gb/s of TCP.
	saturation float64
	// prepared: the scenario's own preparations are done, for this size.
	prepared bool
	// flood is what is offered to saturate every variant, in packets per second.
	flood float64
	// settle is what traffic gets to become steady before it is measured, at least.
	settle time.Duration
	// look is at the running variant's daemon, whose status has to be the same for calm; that is waited
	// for until limit. nil: there is none.
	look        func(context.Context) (condition, error)
	calm, limit time.Duration
	// led: it has become steady, and settle is what it needs.
	led bool
	// settling is what is told of that, by metric; nil: it is not told. unsteady says why it was not.
	settling map[string]float64
	unsteady []string
}

// Run runs a series, or one for each size, and returns their results. Rounds
// that fail are missing in the result, with a note; the series goes on.
func Run(ctx context.Context, b *bed.Bed, cfg Config) ([]report.Result, error) {
	if b.Topology == bed.Bare {
		return nil, errors.New("a bare lab has no overlay to measure: choose another --topology")
	}
	if err := cfg.Normalize(b.NIC); err != nil {
		return nil, err
	}
	s, _ := find(scenarios, cfg.Scenario)
	if err := s.possible(b); err != nil {
		return nil, err
	}
	clock, err := traffic.NewCPUClock()
	if err != nil {
		return nil, err
	}
	defer clock.Close()
	if cfg.Awake {
		done, err := traffic.StayAwake()
		if err != nil {
			return nil, err
		}
		defer done()
	}
	perCheck, err := traffic.CheckerCost()
	if err != nil {
		return nil, err
	}
	cores := b.Cores
	if err := cores.KeepBusy(cfg.Busy); err != nil {
		return nil, err
	}
	spinners, err := traffic.Spin(b.Receiver().NS, cores.Busy)
	if err != nil {
		return nil, err
	}
	defer spinners.Stop()
	e := &env{bed: b, cores: cores, clock: clock, checkerNS: perCheck, mixed: s.mixed, offers: map[string]float64{}}
	var results []report.Result
	for _, at := range s.pointsFor(&cfg) {
		one := cfg
		at.set(&one)
		if e.cfg == nil || e.cfg.Size != one.Size {
			e.prepared = false
		}
		e.cfg = &one
		res, err := e.series(ctx, s, at.label)
		results = append(results, res)
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

func (e *env) series(ctx context.Context, s scenario, label string) (report.Result, error) {
	cfg := e.cfg
	name := s.name
	if label != "" {
		name += "/" + label
	}
	rep := report.New(report.Meta{Scenario: name, NIC: string(e.bed.NIC), NAPI: e.bed.Polling(), Awake: cfg.Awake, NoRealTime: !traffic.RealTime(),
		Machine: report.Machine{Kernel: kernelRelease(), Cores: runtime.NumCPU(), Roles: e.cores.String()},
		Rounds:  cfg.Rounds, Seconds: cfg.Length.Seconds(), Command: cfg.Command})
	if s.prepare != nil && !e.prepared {
		e.prepared = true
		if err := e.bed.Reset(); err != nil {
			return rep.Finish(), err
		}
		e.overlay, e.threads, e.watch, e.look, e.settle = true, nil, nil, nil, e.slowly(settle)
		if err := s.prepare(ctx, e); err != nil {
			return rep.Finish(), fmt.Errorf("%s: %w", name, err)
		}
	}
	rows := map[string][]map[string]float64{}
	start, total, done := time.Now(), cfg.Rounds*len(cfg.Variants), 0
	for round := range cfg.Rounds {
		for _, vname := range cfg.Variants {
			if err := ctx.Err(); err != nil {
				return rep.Finish(), err
			}
			e.round = round
			v, _ := find(variants, vname)
			values, err := e.measure(ctx, s, v)
			if ctx.Err() != nil {
				return rep.Finish(), ctx.Err()
			}
			if err != nil {
				rep.Note(vname, fmt.Sprintf("round %d: %v", round+1, err))
			}
			for _, why := range e.unsteady {
				rep.Note(vname, fmt.Sprintf("round %d: %s", round+1, why))
			}
			rep.Add(vname, round, values)
			// What chooses among mechanisms says which.
			if acted, ok := values[report.Acted]; ok && (acted < report.MinActed || v.chooses) && round == cfg.Rounds-1 {
				rep.Note(vname, "in its own words, in the last round: "+e.reason)
			}
			if values != nil {
				rows[vname] = append(rows[vname], values)
			}
			done++
			left := time.Since(start) / time.Duration(done) * time.Duration(total-done)
			e.logf("%s  round %d of %d  %-16s %s  (%s left)", name, round+1, cfg.Rounds, vname, brief(values, err), left.Round(time.Second))
			if v.chooses && err == nil {
				e.logf("    %s", e.reason)
			}
		}
	}
	for _, vname := range cfg.Variants {
		if x := report.Median(sorted(rows[vname], foreign)); x > noisy {
			rep.Note(vname, fmt.Sprintf("other programs used %.2g cores at the same time (median): not a quiet machine", x))
		}
		if x := report.Median(sorted(rows[vname], predicted)); x > 0 {
			rep.Note(vname, fmt.Sprintf("predicted by its measure of the stages: %.2f times one core's rate, for one flow that saturates it (median)", x))
		}
		if s.remark != nil && len(rows[vname]) > 0 {
			rep.Note(vname, s.remark(rows[vname]))
		}
	}
	return rep.Finish(), nil
}

// remarkOn writes the medians of metrics that are ratios.
func remarkOn(metrics ...string) func([]map[string]float64) string {
	return func(rounds []map[string]float64) string {
		var parts []string
		for _, m := range metrics {
			xs := sorted(rounds, m)
			parts = append(parts, fmt.Sprintf("%s %.2f (%.2f to %.2f)", m, report.Median(xs), xs[0], xs[len(xs)-1]))
		}
		return strings.Join(parts, ", ")
	}
}

func sorted(rounds []map[string]float64, metric string) (xs []float64) {
	for _, r := range rounds {
		xs = append(xs, r[metric])
	}
	slices.Sort(xs)
	return xs
}

// foreign is the number of cores that other programs of the machine used.
const foreign = "foreign_cores"

// noisy is what of them spoils a figure.
const noisy = 0.1

// measure brings the bed into a variant, runs the traffic, and takes it back.
func (e *env) measure(ctx context.Context, s scenario, v variant) (values map[string]float64, err error) {
	e.settling, e.unsteady = map[string]float64{}, nil
	if err := e.bed.Reset(); err != nil {
		return nil, err
	}
	e.variant, e.overlay, e.threads, e.watch, e.look = v.name, !v.host, nil, nil, nil
	e.settle, e.calm, e.limit, e.led = e.slowly(settle), calmFor, settleLimit, false
	if v.judged {
		e.calm, e.limit = judgedFor, judgedBy
	}
	ses, err := v.start(ctx, e, s)
	if err != nil {
		return nil, err
	}
	used, span, err := e.used(func() (err error) {
		values, err = s.measure(ctx, e)
		return err
	})
	if err == nil {
		values[foreign] = used.Others().Seconds() / span.Seconds()
		err = e.bed.KeptNAPI()
	}
	if err == nil {
		maps.Copy(values, e.settling)
	}
	if err == nil && ses.acted != nil {
		maps.Copy(values, ses.acted())
		e.reason = ses.reason()
	}
	if ses.end != nil {
		err = errors.Join(err, ses.end())
	}
	if err != nil {
		return nil, err
	}
	return values, nil
}

// window is one stretch of time that is measured.
func (e *env) window(ctx context.Context, f func() error) error {
	if e.watch != nil {
		if err := e.watch(ctx, true); err != nil {
			return err
		}
	}
	if err := f(); err != nil {
		return err
	}
	if e.watch != nil {
		return e.watch(ctx, false)
	}
	return nil
}

func (e *env) logf(format string, args ...any) { fmt.Fprintf(e.cfg.Log, format+"\n", args...) }

// brief is a measurement in a line of progress.
func brief(values map[string]float64, err error) string {
	if err != nil {
		line, _, _ := strings.Cut(err.Error(), "\n")
		return "failed: " + line
	}
	var parts []string
	for _, m := range []string{report.RPS, report.KPPS, report.Gbps, report.P50, report.P99, report.LossFreeKPPS, report.RRP50, report.RRP99,
		report.BulkKPPS, report.BulkGbps, report.Settled, report.Placed, report.Reordered, report.Duplicated} {
		if x, ok := values[m]; ok && (x != 0 || m != report.Reordered && m != report.Duplicated) {
			parts = append(parts, fmt.Sprintf("%s %.4g", m, x))
		}
	}
	if x := values[foreign]; x > noisy {
		parts = append(parts, fmt.Sprintf("others use %.2g cores", x))
	}
	return strings.Join(parts, ", ")
}
