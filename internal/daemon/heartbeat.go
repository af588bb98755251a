// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/mechanism"
)

// heartbeat tells the programs that the daemon decides. Without it flows drain by themselves.
func (d *Daemon) heartbeat(now time.Time) error {
	was := d.lastAlive
	d.lastAlive = now
	if late := now.Sub(was); !was.IsZero() && late > datapath.WatchdogTimeout && d.mechs.any(func(m mechanism.Mechanism) bool { return m.Steers() != mechanism.NotSteered }) {
		d.log.Warn("flows drained meanwhile", "reason", fmt.Sprintf("the daemon did not get to decide for %s", late.Round(100*time.Millisecond)))
	}
	return d.dp.Heartbeat()
}
