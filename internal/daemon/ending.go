// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"time"

	"github.com/overlane/overlane/internal/apply"
)

// ending bounds the wait for a namespace that no process holds any more: it ends by a worker of the
// kernel's, after a grace period of RCU.
const ending = time.Second

// forgetEnding drops what is journalled of devices that are gone, before the rest is restored. A
// namespace that is not found is no proof for the journal: where parts of /proc are closed to us,
// it may exist for all that we see. But we have known its device, and see that go.
func (p *pipeline) forgetEnding(which func(apply.Entry) bool) error {
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) { // nothing tells of that end
		waits := false
		err := p.locked.Forget(func(e apply.Entry) bool {
			switch {
			case !which(e) || e.Ifindex == 0:
				return false // not of a device
			case p.gone(e.Target):
				return true
			}
			waits = waits || !p.found(e.NetnsCookie)
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

// restore takes entries back, and forgets those of devices that are gone.
func (p *pipeline) restore(which func(apply.Entry) bool) (apply.Report, error) {
	forgotten := p.forgetEnding(which)
	at := newNetnsCache(p.scanner)
	rep, err := p.locked.RestoreIf(at, which)
	return rep, errors.Join(forgotten, err, at.Close())
}
