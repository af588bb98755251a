// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/plan"
)

// crash is what a fault point panics with where a process stands for many.
type crash struct{}

// live runs fn as the owner of the bed's first namespace, and reports
// whether it crashed at the n-th fault point.
func (b *bed) live(n int, fn func(l *Locked)) (crashed bool) {
	b.t.Helper()
	d, err := Open(b.state, b.cookie[b.a])
	b.must(err)
	defer d.Close()
	l, err := d.Lock()
	b.must(err)
	defer func() {
		fault = nil
		if r := recover(); r != nil {
			if _, ok := r.(crash); !ok {
				panic(r)
			}
			crashed = true
			// What the kernel does with the files of a dead process.
			_ = l.j.close()
			_ = l.f.Close()
		}
	}()
	fault = func(string) {
		if n--; n == 0 {
			panic(crash{})
		}
	}
	fn(l)
	fault = nil
	b.must(l.Unlock())
	return false
}

// Random plans, crashes at random points of applying and of restoring, and
// random changes by another program: in the end each setting has its first
// value, or the one that another program gave it.
func TestAnyHistoryRestores(t *testing.T) {
	b := newBed(t)
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("TEST_SEED=%d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	values := [][]string{{"0", "1", "2", "3"}, {"0", "1", "2", "3"}, {"0", "1", "2", "3"}, {"on", "off"}, {"0", "20000", "40000"}, {"on", "off"}}
	crashes := 0
	for history := range 80 {
		want := b.snapshot()
		all := b.steps()[:len(values)]
		for crashed := false; !crashed; {
			crashed = b.live(1+rnd.IntN(40), func(l *Locked) {
				_, err := l.Restore(b)
				b.must(err)
				for range 1 + rnd.IntN(3) {
					var steps []plan.Step
					for _, i := range rnd.Perm(len(all))[:1+rnd.IntN(len(all))] {
						s := all[i]
						s.Want = values[i][rnd.IntN(len(values[i]))]
						steps = append(steps, s)
					}
					if _, err := l.Do(b, steps); err != nil {
						t.Fatal(err)
					}
				}
				_, err = l.Restore(b)
				b.must(err)
			})
		}
		crashes++
		if rnd.IntN(3) == 0 { // 77 is nothing that overlane ever writes
			b.set(b.a, "d0/gro_flush_timeout", "77")
			want["a d0 gro_flush_timeout"] = "77"
		}
		for b.live(1+rnd.IntN(12), func(l *Locked) {
			_, err := l.Restore(b)
			b.must(err)
		}) {
			crashes++
		}
		b.wantSnapshot(want)
		b.wantNoJournal()
		if t.Failed() {
			t.Fatalf("history %d", history)
		}
		b.set(b.a, "d0/gro_flush_timeout", "0")
	}
	t.Logf("%d crashes", crashes)
}
