// SPDX-License-Identifier: Apache-2.0

package mechanism

import (
	"errors"
	"io"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// hooked is a node whose devices remember their programs, and refuse some.
type hooked struct {
	on      map[int]int // programs, by ifindex
	refuses map[int]error
}

type program struct {
	of hooked
	on int
}

func (p program) Close() error { p.of.on[p.on]--; return nil }

func (h hooked) Attach(dev node.Dev, _ func(datapath.Device) (io.Closer, error)) (io.Closer, error) {
	if err := h.refuses[dev.Ifindex]; err != nil {
		return nil, err
	}
	h.on[dev.Ifindex]++
	return program{h, dev.Ifindex}, nil
}

// What a plan has is attached once, and what it has no longer is detached; a device that is gone is no error, and one
// that refuses keeps none of the others from theirs.
func TestHooksFollowThePlan(t *testing.T) {
	refused := errors.New("no memory")
	h := hooked{map[int]int{}, map[int]error{3: node.ErrGone, 4: refused}}
	at := func(program string, devices ...int) (list []plan.Attachment) {
		for _, i := range devices {
			list = append(list, plan.Attachment{Target: plan.Target{NetnsCookie: 1, Ifindex: i}, Program: program})
		}
		return list
	}
	hooks := Hooks{}
	is := func(planned []plan.Attachment, err error, want ...int) {
		t.Helper()
		if got := hooks.Follow(h, planned, time.Minute, nil); !errors.Is(got, err) {
			t.Errorf("error %v, want %v", got, err)
		}
		maps.DeleteFunc(h.on, func(_, n int) bool { return n == 0 })
		if got := slices.Sorted(maps.Keys(h.on)); !slices.Equal(got, want) || slices.ContainsFunc(got, func(i int) bool { return h.on[i] != 1 }) {
			t.Errorf("programs %v, want one on each of %v", h.on, want)
		}
	}
	is(at("a", 1, 2, 3), nil, 1, 2)
	is(at("a", 1, 4, 2, 5), refused, 1, 2, 5)
	is(at("a", 1, 5), nil, 1, 5)
	before := hooks[Hook{node.DevKey{NetnsCookie: 1, Ifindex: 1}, "a"}]
	is(at("b", 1), nil, 1)
	if before == nil || len(hooks) != 1 {
		t.Errorf("another program is taken for the one before: %v", hooks)
	}
	if err := hooks.Close(); err != nil || len(hooks) > 0 {
		t.Errorf("%v is left, error %v", hooks, err)
	}
}

// Where there is no time for all, each call goes on where the last one ended: with one program at least.
func TestHooksFollowThePlanInSteps(t *testing.T) {
	h := hooked{on: map[int]int{}}
	var planned []plan.Attachment
	for i := range 5 {
		planned = append(planned, plan.Attachment{Target: plan.Target{NetnsCookie: 1, Ifindex: i}, Program: "a"})
	}
	hooks := Hooks{}
	for _, what := range []struct {
		planned []plan.Attachment
		last    int // programs
	}{{planned, len(planned)}, {nil, 0}} {
		err, calls := ErrMore, 0
		for ; errors.Is(err, ErrMore) && calls <= len(planned); calls++ {
			before := len(hooks)
			err = hooks.Follow(h, what.planned, -1, nil)
			if len(hooks) == before && err != nil {
				t.Fatalf("call %d does nothing: %v", calls, err)
			}
		}
		if err != nil || len(hooks) != what.last {
			t.Errorf("after %d calls %d programs, want %d: %v", calls, len(hooks), what.last, err)
		}
	}
}

// A program is the planned one by what the kernel keeps of its name, whether its BTF has all of it or cannot be read.
func TestLongNamesOfProgramsAreTheSame(t *testing.T) {
	at := plan.Attachment{Target: plan.Target{NetnsCookie: 1, Ifindex: 2}, Program: "ol_underlay_number"}
	for name, same := range map[string]bool{"ol_underlay_number": true, "ol_underlay_num": true, "ol_underlay_split": false, "ol_underlay_in": false} {
		found := Hook{node.DevKey{NetnsCookie: 1, Ifindex: 2}, name}
		if got := inKernel(found) == inKernel(HookOf(at)); got != same {
			t.Errorf("%s is said to be %s: %t", name, at.Program, got)
		}
	}
}
