// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"fmt"
	"net"

	"github.com/cilium/ebpf/link"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/bpf"
)

// variant is a way to set up the receiving host.
type variant struct {
	name string
	what string
	host bool    // traffic without the overlay
	nic  bed.NIC // the only mode of the wire in which it means something
	why  string
	// judged: its mechanisms have to show first whether they pay.
	judged bool
	// chooses: it decides itself which mechanisms act.
	chooses bool
	start   starter
}

// session is a variant that is in force.
type session struct {
	// acted says what the variant did in the stretches that were measured.
	acted func() map[string]float64
	// reason is why the variant did what it did, in its own words.
	reason func() string
	// end takes back what bed.Reset does not.
	end func() error
}

// variants in the order in which "all" runs them.
var variants []variant

func init() {
	// Not a literal: rps-best measures, and so leads back to this list.
	variants = []variant{
		{name: "host", what: "no overlay", host: true, start: plain},
		{name: "overlay", what: "the plain overlay, stock settings", start: plain},
		{name: "overlay-xdp", what: "the plain overlay with an empty XDP program on the wire", start: startXDP},
		{name: "rps", what: "RPS over all cores on the NIC, the usual advice", start: startRPS},
		{name: "rps-best", what: "the best static RPS mask for each device, found by a sweep", start: startBestRPS},
		{name: "threaded", what: "the plain overlay with threaded NAPI", start: startThreaded,
			nic: bed.Softirq, why: "with --nic thread the plain overlay has threaded NAPI already"},
		{name: "pipeline", what: "overlane: stages of a flow on several cores", start: pipeline("auto", "auto"), judged: true},
		{name: "pipeline-tc", what: "the same, without XDP", start: pipeline("auto", "tc"), judged: true},
		{name: "pipeline-xdp", what: "the same, with the first stage split by XDP", start: pipeline("auto", "xdp"), judged: true},
		{name: "pipeline-forced", what: "the same, without its judgement when to act", start: pipeline("forced", "auto")},
		{name: "pipeline-tc-forced", what: "pipeline-tc without its judgement", start: pipeline("forced", "tc")},
		{name: "pipeline-xdp-forced", what: "pipeline-xdp without its judgement", start: pipeline("forced", "xdp")},
		{name: "microflows", what: "overlane: one flow's packets on several cores; UDP in no order where the kernel cannot restore it", start: microflows("auto", "xdp"), judged: true},
		{name: "microflows-forced", what: "the same, without its judgement when to act", start: microflows("forced", "xdp")},
		{name: "microflows-tc", what: "the same, cut behind the NIC's stage", start: microflows("auto", "tc"), judged: true},
		{name: "microflows-tc-forced", what: "microflows-tc without its judgement", start: microflows("forced", "tc")},
		{name: "aggregate", what: "overlane: datagrams of one flow that come in a row cross the overlay as one packet", start: aggregate("auto")},
		{name: "aggregate-forced", what: "the same, without its judgement when to act", start: aggregate("forced")},
		{name: "express", what: "overlane: frames go from the NIC straight to the pod", start: express("off", "off")},
		{name: "shorter", what: "overlane: aggregate and express together", start: express("auto", "off")},
		{name: "shorter-pipeline", what: "shorter, and the pipeline beside it", start: express("auto", "auto"), judged: true},
		{name: "skip-hooks", what: "overlane: bridges leave out netfilter's hooks while these are unused", start: skipping()},
		{name: "priority", what: "overlane: the flow whose latency is measured overtakes the background", start: priority("batch", "off")},
		{name: "priority-sync", what: "the same, from the tunnel straight to the pod", start: priority("sync", "off")},
		{name: "priority-pipeline", what: "priority, and the pipeline beside it", start: priority("batch", "auto"), judged: true},
		{name: "priority-shorter", what: "priority, and shorter beside it", start: priority("batch", "off", "express: forced", "aggregate: auto")},
		{name: "together", what: "priority, shorter and the pipeline", start: priority("batch", "auto", "express: forced", "aggregate: auto"), judged: true},
		{name: "host-priority", what: "no overlay; the same for flows of the host network", host: true, start: priority("batch", "off")},
		{name: "auto", what: "overlane run without a configuration: what a user gets", start: auto(""), judged: true, chooses: true},
		{name: "auto-express", what: "the same, with the express path allowed", start: auto("express: auto\n"), judged: true, chooses: true},
		{name: "orphaned", what: "what stays when the daemon and its guardian are killed at once", start: startOrphaned},
	}
}

func (v variant) called() string { return v.name }

func plain(context.Context, *env, scenario) (session, error) { return session{}, nil }

func startRPS(_ context.Context, e *env, _ scenario) (session, error) {
	rx := e.bed.Receiver()
	return session{}, bed.SetRPS(rx.NS, rx.Wire, e.cores.Steer)
}

func startThreaded(_ context.Context, e *env, _ scenario) (session, error) {
	return session{}, e.bed.SetThreaded(true)
}

// startXDP attaches the empty program.
func startXDP(_ context.Context, e *env, _ scenario) (session, error) {
	var objs bpf.PassObjects
	if err := bpf.LoadPassObjects(&objs, nil); err != nil {
		return session{}, fmt.Errorf("load XDP_PASS: %w", err)
	}
	defer objs.Close() // the link keeps the program
	var l link.Link
	rx := e.bed.Receiver()
	err := rx.NS.Do(func() error {
		ifi, err := net.InterfaceByName(rx.Wire)
		if err != nil {
			return err
		}
		l, err = link.AttachXDP(link.XDPOptions{Program: objs.Pass, Interface: ifi.Index, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		return session{}, fmt.Errorf("attach XDP_PASS to %s: %w", rx.Wire, err)
	}
	return session{end: l.Close}, nil
}
