// SPDX-License-Identifier: Apache-2.0

package order

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/lab/bed"
)

var serial int

func up(t *testing.T, topology bed.Topology, nic bed.NIC) *bed.Bed {
	t.Helper()
	needRoot(t)
	serial++
	b, err := bed.Up(bed.Options{
		Name: fmt.Sprintf("o%d%d", os.Getpid()%1000000, serial), StateDir: filepath.Join(t.TempDir(), "lab"),
		Topology: topology, NIC: nic,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Down(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func TestTry(t *testing.T) {
	b := up(t, bed.Bridged, bed.NIC(os.Getenv("NIC")))
	for _, tier := range []governor.Tier{governor.TC, governor.XDP} {
		for name, s := range map[string]scene{"steady": steady, "resteered": resteered, "toggled": toggled, "shrunk": shrunk} {
			for _, lossy := range []bool{false, true} {
				for _, flows := range []int{1, 8} {
					t.Run(fmt.Sprint(tier, name, lossy, flows), func(t *testing.T) {
						r := run{bed: b, tier: tier, flows: flows, lossy: lossy, start: startInProcess, scene: s, until: progress{packets: 300000}}
						r.do(t)
					})
				}
			}
		}
	}
}
