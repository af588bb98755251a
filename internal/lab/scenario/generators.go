// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
)

// generators feed the wire's queues, one each. A flow stays with one of them.
type generators []*generator

type generator struct {
	*traffic.Live
	flows int
	rates traffic.Rates
	shift int
}

// lostAfter is how long a window waits for frames before it takes them for lost.
const lostAfter = 50 * time.Millisecond

// shiftEvery is how long a ranking of shifting flows lasts.
const shiftEvery = 100 * time.Millisecond

func (e *env) startLive(o offer, check *traffic.Checker) (_ generators, err error) {
	var gens generators
	defer func() {
		if err != nil {
			_, serr := gens.stop()
			err = errors.Join(err, serr)
		}
	}()
	n := min(e.bed.Queues, o.flows)
	batch := o.batch
	if batch == 0 && e.bed.NIC == bed.Softirq {
		// What a busy network card finds in its ring when it is polled.
		batch = 256
	}
	for q := range n {
		var flows []traffic.Flow
		for id := q; id < o.flows; id += n {
			flows = append(flows, e.flow(id))
		}
		schedule, err := o.rates.Schedule(len(flows), 0)
		if err != nil {
			return gens, err
		}
		cfg := traffic.LiveConfig{Flows: flows, Schedule: schedule, Size: o.size, Mixed: o.mixed, Core: e.cores.Gen[q], Batch: batch, Window: o.window,
			Patience: cmp.Or(o.patience, e.slowly(lostAfter)), Eager: e.cfg.eager, Stamp: o.stamp, MakeUp: o.makeUp}
		if o.rate > 0 {
			cfg.Gap = time.Duration(float64(time.Second) * float64(n) / o.rate)
		}
		if o.window > 0 {
			cfg.UnderWay = check.UnderWay()
		}
		l, err := traffic.StartLive(e.bed, cfg)
		if err != nil {
			return gens, err
		}
		gens = append(gens, &generator{Live: l, flows: len(flows), rates: o.rates})
	}
	return gens, nil
}

// wait lets them run, and moves shifting rates on.
func (g generators) wait(ctx context.Context, d time.Duration) error {
	for end := time.Now().Add(d); ; {
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		if g[0].rates != traffic.Shifting {
			return sleep(ctx, left)
		}
		if err := sleep(ctx, min(left, shiftEvery)); err != nil {
			return err
		}
		for _, one := range g {
			one.shift++
			schedule, err := one.rates.Schedule(one.flows, one.shift)
			if err != nil {
				return err
			}
			if err := one.SetSchedule(schedule, one.flows); err != nil {
				return err
			}
		}
	}
}

func (g generators) sum(read func(*traffic.Live) (traffic.Sent, error)) (traffic.Sent, error) {
	var sum traffic.Sent
	var errs []error
	for _, one := range g {
		s, err := read(one.Live)
		errs = append(errs, err)
		sum.Frames += s.Frames
		sum.Datagrams += s.Datagrams
		sum.Waited += s.Waited
	}
	return sum, errors.Join(errs...)
}

func (g generators) sent() (traffic.Sent, error) { return g.sum((*traffic.Live).Sent) }
func (g generators) stop() (traffic.Sent, error) { return g.sum((*traffic.Live).Stop) }
