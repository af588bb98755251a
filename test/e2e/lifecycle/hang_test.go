// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
)

// A daemon that hangs decides nothing: its flows drain by themselves, in order, and are
// steered again when it lives.
func TestFlowsDrainWhenTheDaemonHangs(t *testing.T) {
	b := lab(t, bed.Options{Pods: 2})
	rx := b.Receiver()
	d := rig.Start(t, rig.Spec{NS: rx.NS, Config: forced})
	l := rig.StartSteady(t, b, 4, 0, 1)
	d.Acting()
	// Behind the NIC a packet that is steered to a lane of the tunnel stage has a hash, one that stays has none.
	w := newWitnessOf(t, hash, "looker", goOn)
	there := w.attach(rx.NS, rx.Wire, ebpf.AttachTCXIngress)
	rig.Until(t, "packets are steered", func() (bool, string) {
		without, with := w.counts()
		return with > 0, fmt.Sprint(without, with)
	})
	d.Signal(unix.SIGSTOP)
	rig.Until(t, "no packet is steered any more", func() (bool, string) {
		_, was := w.counts()
		l.GoesOn()
		without, with := w.counts()
		return with == was && without > 0, fmt.Sprint(without, with, was)
	})
	d.Signal(unix.SIGCONT)
	_, was := w.counts()
	rig.Until(t, "packets are steered again", func() (bool, string) {
		without, with := w.counts()
		return with > was, fmt.Sprint(without, with, was)
	})
	d.Says("flows drained meanwhile")
	must(t, there.Close())
	l.GoesOn()
	ends(t, d)
	left(t, d, l.Stop())
}
