// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"time"

	"github.com/overlane/overlane/internal/datapath"
)

// draining watches flows leave the lanes: those of the nic and the tunnel stage, then those of the pod stage, so that
// no backlog carries both at any time.
type draining struct {
	datapath.Draining
	fromPod bool
}

func (a *actuator) lookDrained(now time.Time) (bool, error) {
	h := &a.draining
	c, err := a.dp.Counters()
	if err != nil {
		return false, err
	}
	sent := c.Steered + c.XDPLane + c.Split
	if h.fromPod {
		pods, err := a.dp.PodSent(c.PodSteered)
		if err != nil {
			return false, err
		}
		sent += pods
	}
	if !h.Still(now, sent) {
		return false, nil
	}
	if h.fromPod {
		// Without lanes of the nic stage, rings hold priority's frames only, which have not come as far as the pipeline.
		return h.Handled(a.dp, len(a.layout.NIC) > 0, a.host.Offline)
	}
	for cpu := range a.dp.CPUs() {
		if err := a.dp.Steer(cpu); err != nil {
			return false, err
		}
	}
	*h = draining{fromPod: true}
	return false, nil
}

// waitDrained waits until no flow is on a lane, or the deadline. On overload flows
// may not drain; then it says so, and goes on the next time.
func (a *actuator) waitDrained(ctx context.Context) error {
	return a.draining.Reason(datapath.Await(ctx, func() (bool, error) {
		a.host.Meanwhile()
		return a.lookDrained(time.Now())
	}))
}
