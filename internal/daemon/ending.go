// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"time"

	"github.com/overlane/overlane/internal/plan"
)

// ending bounds the wait for a namespace that nobody holds any more: it ends by a worker of the
// kernel's, after a grace period of RCU.
const ending = time.Second

// forgetEnding drops what is journalled of devices that are gone, before the rest is restored. A
// namespace that is not found is no proof for the journal: where parts of /proc are closed to us,
// it may exist for all that we see. But we have known its device, and see that go.
func (p *pipeline) forgetEnding(which func(plan.Setting) bool) error {
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) { // nothing tells of that end
		mine, waits := map[plan.Target]bool{}, false
		for _, e := range p.locked.Entries() {
			if which(e.Setting) && !ownDevices(e.Target) {
				mine[e.Target] = true
			}
		}
		err := p.locked.Forget(func(t plan.Target) bool {
			switch {
			case !mine[t]:
				return false
			case p.gone(t):
				return true
			}
			waits = waits || !p.found(t.NetnsCookie)
			return false
		})
		if err != nil || !waits || time.Since(begin) > ending {
			return err
		}
	}
}

// found tells whether a namespace is still where the last scan saw it.
func (p *pipeline) found(cookie uint64) bool {
	ns, err := p.scanner.Namespace(cookie)
	if err != nil {
		return false
	}
	ns.Close()
	return true
}
