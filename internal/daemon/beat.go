// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"time"

	"github.com/overlane/overlane/internal/datapath"
)

// beat tells the programs that the daemon decides. Without it flows go home by themselves.
func (d *Daemon) beat(now time.Time) error {
	was := d.beaten
	d.beaten = now
	if late := now.Sub(was); !was.IsZero() && late > datapath.AloneAfter && (d.pipe.steering || d.expr.Acts()) {
		d.log.Warn("flows went home meanwhile", "reason", fmt.Sprintf("the daemon did not get to decide for %s", late.Round(100*time.Millisecond)))
	}
	return d.dp.Beat()
}
