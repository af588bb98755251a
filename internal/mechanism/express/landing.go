// SPDX-License-Identifier: Apache-2.0

package express

import (
	"time"

	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/shortcut"
)

// landing is what frames of express come to: at the pods' ends of veths datagrams are joined as well,
// unless something in a pod would see the difference.
type landing struct {
	eligible *shortcut.JoinEligibility
	check    mechanism.Check
	may      bool
}

func (l *landing) joins(h Host, now time.Time) bool {
	if h.AggregationMode() == governor.Forced {
		return true
	}
	if l.eligible == nil {
		l.eligible = shortcut.NewJoinEligibility(h.Scanner(), h.Owns, nil)
	}
	if !l.check.Due(now) {
		return l.may
	}
	defer l.check.Made(time.Now())
	reason := mayJoin(l.eligible, h.Snapshot(), l.may)
	if was := l.may; was != (reason == "") {
		l.may = !was
		if reason != "" {
			h.Log().Info("datagrams are not joined at the pods' ends", "mechanism", "express", "reason", reason)
		}
	}
	return l.may
}

// mayJoin says what in a pod would see the difference, empty: nothing. joining: datagrams are joined by what it said
// last.
func mayJoin(e *shortcut.JoinEligibility, snap node.Snapshot, joining bool) string {
	reason, err := e.AnyPod(snap, joining)
	if err != nil {
		return err.Error()
	}
	return reason
}
