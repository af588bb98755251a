// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"time"

	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/mechanism/aggregate"
)

// landing is what frames of express come to: at the pods' ends of veths datagrams are joined as well,
// unless something in a pod would see the difference.
type landing struct {
	eligible *aggregate.Eligibility
	check    mechanism.Check
	may      bool
}

func (l *landing) joins(d *Daemon, now time.Time) bool {
	if d.opts.Aggregate == governor.Forced {
		return true
	}
	if l.eligible == nil {
		l.eligible = aggregate.NewEligibility(d.scanner, d.dp.Owns, nil)
	}
	if !l.check.Due(now) {
		return l.may
	}
	defer l.check.Made(time.Now())
	reason, err := l.eligible.AnyPod(d.snap)
	if err != nil {
		reason = err.Error()
	}
	if was := l.may; was != (reason == "") {
		l.may = !was
		if reason != "" {
			d.log.Info("datagrams are not joined at the pods' ends", "mechanism", "express", "reason", reason)
		}
	}
	return l.may
}
