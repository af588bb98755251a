// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/residue"
	"github.com/overlane/overlane/test/speed"
)

const (
	burst = 200
	// quiet is how long nothing must have happened before a burst of events is told of.
	quiet = 50 * time.Millisecond
)

// Two hundred pods come at once, and go at once. The daemon knows each, has looked at the node a
// few times, not for each pod or each of its events, and has not become big.
func TestABurstOfPodsIsBoundedWork(t *testing.T) {
	speed.Long(t)
	list := runs
	lasts, asked := duration(t)
	if !asked {
		list = list[:1]
	}
	for _, r := range list {
		t.Run(r.name, func(t *testing.T) {
			rig.NeedCores(t, 2)
			b := rig.Lab(t, bed.Options{})
			residue.Check(t, rig.Scope(b))
			l := rig.StartSteady(t, b, 1)
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: r.config})
			s := &life{t: t, b: b, d: d, l: l}
			knows := func(pods int) {
				t.Helper()
				rig.Until(t, fmt.Sprintf("the daemon knows %d pods", pods), func() (bool, string) {
					n := 0
					for _, dev := range s.status().Devices {
						if dev.Role == control.Pod {
							n++
						}
					}
					return n == pods, fmt.Sprintf("%d", n)
				})
			}
			knows(1)
			before := s.look()
			changes(t, d, "200 pods come", func() {
				for n := range burst {
					p, remove := rig.Container(t, b, n)
					rig.Plug(t, b.Receiver(), p)
					s.remove = append(s.remove, remove)
				}
				knows(burst + 1)
			})
			span := time.Second
			if asked {
				span = lasts / 10
			}
			spent(t, d, "at rest", span)
			if asked {
				inOrder(t, l.Stop())
				flood := rig.StartFlood(t, b, 4)
				// At first mechanisms come, to 200 pods, and are tried.
				spent(t, d, "beside a saturated core", span)
				spent(t, d, "and then", span)
				flood.Stop()
				l = rig.StartSteady(t, b, 1)
			}
			now := s.look()
			t.Logf("with one pod: %s", before)
			t.Logf("with %d more: %s", burst, now)
			if now.Memory > maxMemory {
				t.Errorf("%d KiB, %d are promised", now.Memory, maxMemory)
			}
			changes(t, d, "200 pods go", func() {
				for _, remove := range s.remove {
					remove()
				}
				knows(1)
			})
			l.GoesOn()
			d.Signal(unix.SIGTERM)
			if code := d.Exited().ExitCode(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			inOrder(t, l.Stop())
		})
	}
}

func inOrder(t *testing.T, v rig.Verdict) {
	t.Helper()
	if v.Reordered > polls || v.Duplicated+v.Stale > 0 {
		t.Errorf("%+v", v)
	}
}

// changes judges how often the daemon looks at the node while something happens to it: less often
// than the node is still for a moment.
func changes(t *testing.T, d *rig.Daemon, what string, happen func()) {
	t.Helper()
	scans := func() uint64 {
		st, err := d.Peek()
		if err != nil {
			t.Fatal(err)
		}
		return st.Counters.Scans
	}
	begin, before, busy := time.Now(), scans(), d.Time()
	happen()
	n, took := scans()-before, time.Since(begin)
	t.Logf("%s in %s: looked at %d times, for which the daemon took %s in all", what, took.Round(time.Millisecond), n, (d.Time() - busy).Round(time.Millisecond))
	if limit := uint64(2 + took/quiet); n > limit {
		t.Errorf("%s: the node was looked at %d times in %s, with more than %s between two events that is %d at most", what, n, took, quiet, limit)
	}
}

// spent says what a daemon takes, which is measured and not judged.
func spent(t *testing.T, d *rig.Daemon, when string, span time.Duration) {
	t.Helper()
	begin, busy := time.Now(), d.Time()
	time.Sleep(span)
	took := time.Since(begin)
	t.Logf("%s: %.2f %% of a core", when, 100*float64(d.Time()-busy)/float64(took))
}
