// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/plan"
)

// The programs at tcx.
const (
	underlayIn     = "ol_underlay_in"
	underlaySplit  = "ol_underlay_split"
	underlayNumber = "ol_underlay_number"
	tunnelClear    = "ol_tunnel_clear"
	podOut         = "ol_pod_out"
	podMerge       = "ol_pod_merge"
	podRestore     = "ol_pod_restore"
)

// attaches is how each of them is attached.
var attaches = map[string]func(Kernel, datapath.Device) (io.Closer, error){
	underlayIn:     Kernel.AttachUnderlay,
	underlaySplit:  Kernel.AttachUnderlaySplit,
	underlayNumber: Kernel.AttachUnderlayNumber,
	tunnelClear:    Kernel.AttachTunnel,
	podOut:         Kernel.AttachPod,
	podMerge:       Kernel.AttachPodMerge,
	podRestore:     Kernel.AttachPodLeftAlone,
}

// hashed tells whether packets get hashes by which masks send them elsewhere, of tunnels or of pods.
func hashed(l governor.Layout) bool { return !l.Split || len(l.Tunnel) > 0 }

// attachPrograms attaches the programs of a plan at tcx that are not there, and detaches what it does not have any
// more. It may end with mechanism.ErrMore, and is to be called again, unless flows are split, whose micro-flows each pod
// has to have merged.
func (a *actuator) attachPrograms(made plan.Plan) error {
	split := a.layout.Split
	if err := a.dp.SetNeutral(hashed(a.layout)); err != nil {
		return err
	}
	want := map[mechanism.Hook]bool{}
	var errs []error
	begun, more := time.Now(), false
	late := func() bool {
		a.host.Meanwhile()
		more = more || !split && time.Since(begun) > mechanism.AttachFor
		return more
	}
	for _, at := range made.Attach {
		if at.Program == podMerge && a.merge.namespaces[at.NetnsCookie].program == nil {
			// Packets would go to a device that is not there.
			if at.Program = podRestore; !hashed(a.layout) {
				continue
			}
		}
		attach, known := attaches[at.Program]
		if !known {
			continue // at XDP: takePlaces
		}
		want[mechanism.HookOf(at)] = true
		if a.attached[mechanism.HookOf(at)] != nil || late() {
			continue
		}
		err := a.attached.Attach(a.host, at, func(d datapath.Device) (io.Closer, error) { return attach(a.dp, d) })
		switch {
		case err == nil:
		case split || at.Serves == (plan.Target{}): // each pod has to have its micro-flows merged
			errs = append(errs, err)
		default:
			a.refuse(at.Serves, refusal{fmt.Sprintf("no program could be attached to %s: %v", at.Name, err), true})
		}
	}
	errs = append(errs, a.attached.Keep(func(h mechanism.Hook) bool { return want[h] || late() }))
	if more {
		errs = append(errs, mechanism.ErrMore)
	}
	return errors.Join(errs...)
}
