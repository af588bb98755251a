// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"time"

	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/snmp"
)

// checksumTime is how long wrong checksums are counted at least. The counters say nothing of when
// they grew, so that only what comes meanwhile is told of.
const checksumTime = time.Second

// badChecksums counts, by namespace, the packets that were dropped for a wrong checksum, where
// packets of an overlay end: outer ones at the underlays, inner ones in the pods. A namespace that
// cannot be read is left out.
func badChecksums(namespaces Namespaces, snap node.Snapshot) map[uint64]uint64 {
	counts := map[uint64]uint64{}
	read := func(cookie uint64) {
		if _, ok := counts[cookie]; ok {
			return
		}
		h, err := namespaces.Namespace(cookie)
		if err != nil {
			return
		}
		defer h.Close()
		if c, err := snmp.Read(h); err == nil {
			counts[cookie] = c.BadChecksums()
		}
	}
	for _, u := range snap.Underlays {
		read(u.NetnsCookie)
	}
	for _, p := range snap.Pods {
		read(p.Peer.NetnsCookie)
	}
	return counts
}

// grown counts again and notes with each device what came since the first time.
func grown(ctx context.Context, namespaces Namespaces, snap node.Snapshot, before map[uint64]uint64, since time.Time, devs map[node.DevKey]dev) error {
	if len(before) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(since.Add(checksumTime))):
	}
	for cookie, n := range badChecksums(namespaces, snap) {
		first, ok := before[cookie]
		if !ok || n <= first {
			continue
		}
		for k, d := range devs {
			if k.NetnsCookie == cookie {
				d.badSums = n - first
				devs[k] = d
			}
		}
	}
	return nil
}
