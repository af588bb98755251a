// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/report"
)

// masks is one static choice: the cores of each device's RPS, by hop.
type masks struct {
	Wire   []int   `json:"wire"`
	Tunnel []int   `json:"tunnel"`
	Pod    []int   `json:"pod"`
	Score  float64 `json:"score"`
}

// startBestRPS does what the best expert does by hand: try what there is, and
// keep the best. The choice is remembered for the life of the bed.
func startBestRPS(ctx context.Context, e *env, s scenario) (session, error) {
	file := filepath.Join(e.bed.Dir(), fmt.Sprintf("rps-best-%s-%d-%d-%s.json", s.name, e.cfg.Size, e.cfg.Flows, e.cfg.Rates))
	var best masks
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &best)
	}
	if err != nil {
		if best, err = e.sweep(ctx, s); err != nil {
			return session{}, fmt.Errorf("find the best RPS masks: %w", err)
		}
		e.logf("%s  best RPS masks: wire %v, tunnel %v, pod %v", s.name, best.Wire, best.Tunnel, best.Pod)
		if data, err = json.Marshal(best); err != nil {
			return session{}, err
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			return session{}, fmt.Errorf("remember RPS masks: %w", err)
		}
	}
	return session{}, e.setMasks(best)
}

func (e *env) setMasks(m masks) error {
	rx := e.bed.Receiver()
	if err := bed.SetRPS(rx.NS, rx.Wire, m.Wire); err != nil {
		return err
	}
	if err := bed.SetRPS(rx.Overlay, bed.Tunnel, m.Tunnel); err != nil {
		return err
	}
	for _, p := range rx.Pods {
		if err := bed.SetRPS(p.NS, bed.PodDev, m.Pod); err != nil {
			return err
		}
	}
	return nil
}

// candidates are the masks to try: on each device none, one core (the first
// few), or all of them. Slow scenarios leave combinations out that put a hop
// before the tunnel in front of others.
func candidates(cores []int, full bool) []masks {
	const singles = 3
	each := [][]int{nil}
	for _, c := range cores[:min(singles, len(cores))] {
		each = append(each, []int{c})
	}
	if len(cores) > 1 {
		each = append(each, cores)
	}
	var list []masks
	for _, w := range each {
		for _, t := range each {
			for _, p := range each {
				if full || w == nil || t == nil && p == nil {
					list = append(list, masks{Wire: w, Tunnel: t, Pod: p})
				}
			}
		}
	}
	return list
}

const (
	finalists = 5
	finals    = 3
)

func (e *env) sweep(ctx context.Context, s scenario) (masks, error) {
	look, again, full := 150*time.Millisecond, 600*time.Millisecond, true
	if s.slow {
		look, again, full = 600*time.Millisecond, 1600*time.Millisecond, false
	}
	list := candidates(e.cores.Steer, full)
	e.logf("%s  looking for the best of %d static RPS masks", s.name, len(list))
	for i := range list {
		var err error
		if list[i].Score, err = e.score(ctx, s, list[i], look); err != nil {
			return masks{}, err
		}
	}
	sortBest(list)
	// A short look is noisy: the best few are looked at again.
	list = list[:min(finalists, len(list))]
	sums := make([]float64, len(list))
	for range finals {
		for i := range list {
			x, err := e.score(ctx, s, list[i], again)
			if err != nil {
				return masks{}, err
			}
			sums[i] += x
		}
	}
	for i := range list {
		list[i].Score = sums[i] / finals
	}
	sortBest(list)
	return list[0], nil
}

func sortBest(list []masks) {
	slices.SortStableFunc(list, func(a, b masks) int { return cmp.Compare(b.Score, a.Score) })
}

// score measures with masks. One that cannot be measured is not the best.
func (e *env) score(ctx context.Context, s scenario, m masks, length time.Duration) (float64, error) {
	short := *e.cfg
	short.Length = length
	probe := *e
	probe.cfg = &short
	probe.settle = 100 * time.Millisecond
	if err := e.setMasks(m); err != nil {
		return 0, err
	}
	values, err := s.measure(ctx, &probe)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil {
		return -1e12, nil
	}
	return goodness(values), nil
}

// goodness is a scenario's main figure, more being better. An order that is
// broken is not good at any speed.
func goodness(v map[string]float64) float64 {
	if v[report.Reordered] > 0 {
		return -v[report.Reordered]
	}
	for _, m := range []string{report.P99, report.RRP99} {
		if x, ok := v[m]; ok {
			return -x
		}
	}
	if x, ok := v[report.Gbps]; ok && v[report.KPPS] == 0 {
		return x
	}
	return v[report.KPPS]
}
