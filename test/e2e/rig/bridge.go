// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/lab/bed"
)

// BridgeForgets has the receiver's bridge forget after so long which address is where, for the
// test's time.
func BridgeForgets(t testing.TB, b *bed.Bed, after time.Duration) {
	t.Helper()
	set := func(ticks uint32) (was uint32, err error) {
		err = b.Receiver().Overlay.Do(func() error {
			l, err := netlink.LinkByName(bed.Bridge)
			if err != nil {
				return err
			}
			was = *l.(*netlink.Bridge).AgeingTime
			return netlink.LinkModify(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bed.Bridge, Index: l.Attrs().Index}, AgeingTime: &ticks})
		})
		return was, err
	}
	was, err := set(uint32(after / (10 * time.Millisecond)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := set(was); err != nil {
			t.Error(err)
		}
	})
}
