// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// errMore says that programs are still to be attached or detached.
var errMore = errors.New("there are more devices")

// attachFor is how long programs are attached to devices at once while flows are steered, on which
// the daemon is to decide. For each the kernel waits for all cores, with its lock on all devices:
// beside a saturated core some 30 ms, which with 200 pods is six seconds.
const attachFor = 200 * time.Millisecond

// attachPrograms attaches the programs to the underlays and pods that lack them, and detaches what is not
// needed any more. Where no stage but the first hops, there are none. While flows are steered, and
// none is split, whose micro-flows each pod has to have merged, it may end with errMore, and is to
// be called again.
func (a *actuator) attachPrograms(snap node.Snapshot) error {
	split := a.layout.Split
	hashes := !split || len(a.layout.Tunnel) > 0
	if !hashes && !a.layout.Merge {
		return nil
	}
	// Tunnels or pods have masks by which packets may be sent elsewhere.
	if err := a.dp.SetNeutral(hashes); err != nil {
		return err
	}
	want := map[node.DevKey]bool{}
	var errs []error
	begun, more := time.Now(), false
	late := func() bool {
		a.host.Meanwhile()
		more = more || a.steering && !split && time.Since(begun) > attachFor
		return more
	}
	attach := func(dev node.Dev, fn func(datapath.Device) (io.Closer, error)) error {
		want[dev.Key()] = true
		if a.attached[dev.Key()] != nil || late() {
			return nil
		}
		l, err := a.host.Attach(dev, fn)
		if errors.Is(err, node.ErrGone) {
			return nil
		}
		if err == nil {
			a.attached[dev.Key()] = l
		}
		return err
	}
	for _, pod := range snap.Pods {
		var err error
		switch {
		case a.refused[pod.Peer.Key()].bare:
		case !a.crossed(pod):
		// Behind the resequencer the qdisc of the host end would be passed by.
		case a.merge != nil && a.merge.namespaces[pod.Host.NetnsCookie].program != nil && podUnfit(pod) == "":
			err = attach(pod.Host, a.dp.AttachPodMerge)
		case !hashes:
		case a.left[pod.Peer.Key()] || split:
			err = attach(pod.Host, a.dp.AttachPodLeftAlone)
		default:
			err = attach(pod.Host, a.dp.AttachPod)
		}
		switch {
		case err == nil:
		case split: // each pod has to have its micro-flows merged
			errs = append(errs, err)
		default:
			a.refuse(snap, plan.Target(pod.Peer), refusal{fmt.Sprintf("no program could be attached to its host end %s: %v", pod.Host.Name, err), true})
		}
	}
	for _, u := range snap.Underlays {
		switch {
		case a.left[u.Key()]:
		case split && len(a.layout.NIC) == 0:
			errs = append(errs, attach(u.Dev, a.dp.AttachUnderlaySplit))
		case split:
			errs = append(errs, attach(u.Dev, a.dp.AttachUnderlayNumber))
		default:
			errs = append(errs, attach(u.Dev, a.dp.AttachUnderlay))
		}
	}
	for key, l := range a.attached {
		if want[key] {
			continue
		}
		if late() {
			break
		}
		errs = append(errs, l.Close())
		delete(a.attached, key)
	}
	if more {
		errs = append(errs, errMore)
	}
	return errors.Join(errs...)
}

// crossed tells whether packets that were steered may come to a pod: by one of its tunnels at
// least.
func (a *actuator) crossed(pod node.Pod) bool {
	return len(pod.Tunnels) == 0 || slices.ContainsFunc(pod.Tunnels, func(t node.Dev) bool { return !a.left[t.Key()] })
}
