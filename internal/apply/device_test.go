// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/plan"
)

func TestDeviceOfOurOwnIsMadeAndGoes(t *testing.T) {
	b := newBed(t)
	l := b.lock()
	before := b.snapshot()
	s := plan.OwnDeviceOf(b.cookie[b.a], "own")
	step := plan.Step{Setting: s, By: plan.ByPipeline, Was: plan.NoDevice, Want: plan.OwnVeth(1<<24, "owned")}
	rep, err := l.Do(b, []plan.Step{step})
	b.must(err)
	wantOutcomes(t, rep, Applied, 1)
	for _, name := range []string{"own", "owned"} {
		b.must(b.a.Do(func() error {
			link, err := netlink.LinkByName(name)
			if err == nil && link.Attrs().Flags&1 == 0 {
				t.Errorf("%s is not up", name)
			}
			return err
		}))
	}
	rep, err = l.Do(b, []plan.Step{step})
	b.must(err)
	wantOutcomes(t, rep, Already, 1)
	rep, err = l.Restore(b)
	b.must(err)
	wantOutcomes(t, rep, Restored, 1)
	b.wantSnapshot(before)
	b.wantNoJournal()
}

func TestDeviceOfAnotherProgramIsLeftAlone(t *testing.T) {
	b := newBed(t)
	l := b.lock()
	b.add(b.a, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "own"}})
	before := b.snapshot()
	rep, err := l.Do(b, []plan.Step{{
		Setting: plan.OwnDeviceOf(b.cookie[b.a], "own"), By: plan.ByPipeline, Was: plan.NoDevice, Want: plan.OwnVeth(1<<24, "owned"),
	}})
	b.must(err)
	wantOutcomes(t, rep, LeftAlone, 1)
	b.wantSnapshot(before)

	// And one that another program has deleted is not made again.
	_, err = l.Do(b, []plan.Step{{
		Setting: plan.OwnDeviceOf(b.cookie[b.b], "own"), By: plan.ByPipeline, Was: plan.NoDevice, Want: plan.OwnVeth(1<<24, "owned"),
	}})
	b.must(err)
	b.del(b.b, "own")
	rep, err = l.Restore(b)
	b.must(err)
	wantOutcomes(t, rep, Untouched, 1)
	b.wantNoJournal()
}
