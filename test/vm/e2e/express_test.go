// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/test/residue"
)

// Datagrams that go from the NIC straight to the pod are at its socket what they were, from
// whatever tunnel they came.
func TestDatagramsThatGoStraightToThePodComeAsTheyWereSent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds network namespaces and loads BPF programs")
	}
	for _, kind := range strings.Split(*tunnels, ",") {
		for _, row := range []struct {
			top    topology
			joined bool
		}{{bridged, true}, {apart, false}} {
			if *machineWide && (!row.joined || kind == "vxlan") {
				continue // VXLAN has more of them in lifecycle
			}
			name := fmt.Sprintf("%s, %s", kind, row.top)
			if row.joined {
				name += ", joined"
			}
			t.Run(name, func(t *testing.T) { goStraight(t, kind, row.top, row.joined) })
		}
	}
}

func goStraight(t *testing.T, kind string, top topology, joined bool) {
	watchKernel(t)
	s := layBare(t, kind, top, false)
	residue.Check(t, s.all())
	d, stop := s.start(t, governor.TC, func(opts *daemon.Options) {
		opts.Pipeline.Mode, opts.Pipeline.Microflows.Mode, opts.Aggregate = governor.Off, governor.Off, governor.Off
		opts.AsleepBelow = 1 // an emulated machine can do less than what wakes a daemon
		if opts.Express = governor.Forced; joined {
			opts.Aggregate = governor.Forced
		}
	})
	v4 := families[0].of
	var st control.Status
	defer func() {
		if t.Failed() {
			t.Logf("%+v, %+v, %+v", st.Mechanisms, st.Express, st.Counters.ExpressUnfit)
		}
	}()
	until(t, "frames go straight to the pod", func() bool {
		p := s.parcels(t, v4, 2000, &parcels{seed: 1})
		p.finish(t)
		st = d.Status()
		return t.Failed() || st.Counters.ExpressPackets > 0
	})
	before := d.Status().Counters
	flows, n := s.assortment(t, 20000)
	after := d.Status()
	if t.Failed() {
		t.Fatalf("%+v, %+v", after.Mechanisms, after.Express)
	}
	straight := after.Counters.ExpressPackets - before.ExpressPackets
	unfit := after.Counters.ExpressUnfit["outer-checksum"] - before.ExpressUnfit["outer-checksum"]
	t.Logf("%d of %d datagrams went straight to the pod, for %d that cannot be told; %d came to sockets that asked for them as one", straight, n, unfit, flows[1].inOne)
	// A flow begins on the full path. Of VXLAN, which has outer checksums here, one without inner
	// ones stays there: whether they are right only the payload tells.
	if straight < uint64(3*flows[0].n/2) || kind == "vxlan" && unfit < uint64(flows[3].n) || flows[1].inOne == 0 {
		t.Errorf("nothing to see: %+v, %+v", after.Mechanisms, after.Counters)
	}
	if err := stop(); err != nil {
		t.Errorf("the daemon ended: %v", err)
	}
	p := s.parcels(t, v4, 200, &parcels{seed: 6, whole: true})
	p.finish(t)
}
