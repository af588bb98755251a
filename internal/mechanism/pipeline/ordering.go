// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"errors"
	"log/slog"
	"time"

	"github.com/overlane/overlane/internal/datapath"
)

// ordering is a qdisc of ours, which looks at the packets' sequence numbers, and wants
// heartbeats.
type ordering struct {
	merge   *datapath.Merge
	log     *slog.Logger
	stop    chan struct{} // ends them
	stopped chan struct{}
}

func newOrdering(dp Kernel, limit time.Duration, log *slog.Logger) (*ordering, error) {
	m, err := dp.LoadMerge(limit)
	if err != nil {
		return nil, err
	}
	if err := m.Heartbeat(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	o := &ordering{merge: m, log: log, stop: make(chan struct{}), stopped: make(chan struct{})}
	go o.live()
	return o, nil
}

// heartbeatEvery is how often the merge gets a heartbeat, which it waits a second for: from a
// goroutine of its own, for what ends them is the end of the process.
const heartbeatEvery = 200 * time.Millisecond

// live sends heartbeats. One that fails is as one that is late: nothing waits any more.
func (o *ordering) live() {
	defer close(o.stopped)
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	for {
		select {
		case <-o.stop:
			return
		case <-tick.C:
			if err := o.merge.Heartbeat(); err != nil {
				o.log.Warn("split flows are not put in order", "reason", err)
				return
			}
		}
	}
}

func (o *ordering) close() error {
	close(o.stop)
	<-o.stopped
	return o.merge.Close()
}
