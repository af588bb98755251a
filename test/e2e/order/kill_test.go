// SPDX-License-Identifier: Apache-2.0

package order

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/residue"
	"github.com/overlane/overlane/test/speed"
)

// A daemon is killed with flows in its lanes, again and again: its guardian drains them before
// anything of it goes.
func TestFlowsOfAKilledDaemonDrain(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{})
	turn := speed.Every(t, 2)
	for _, by := range []means{tc, xdp} {
		if !turn() {
			continue
		}
		t.Run(string(by), func(t *testing.T) {
			residue.Check(t, rig.Scope(b))
			tr := send(t, b, 8, windowed) // so that there is something in its lanes
			kills, inTime := 3**volume, 0
			for i := 0; i < kills || inTime == 0 && i < 10*kills; i++ {
				p, err := start(t, b, by)
				if err != nil {
					t.Fatal(err)
				}
				if err := p.resteer(true); err != nil {
					t.Fatal(err)
				}
				arrived(t, tr, uint64(i+1)*10_000)
				was := tr.late(t)
				p.Signal(unix.SIGKILL)
				p.Exited()
				p.GoneBoth()
				p.NothingLeft()
				// On a machine that others hold up, flows may not be drained in time: that is said.
				if rig.Undrained(p.Log()) {
					tr.excused += tr.late(t) - was
				} else {
					inTime++
				}
			}
			if inTime == 0 {
				t.Errorf("in none of %d kills flows were drained in time", 10*kills)
			}
			tr.judge(t, nil)
		})
	}
}
