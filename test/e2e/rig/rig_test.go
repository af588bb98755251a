// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"testing"
	"testing/synctest"
	"time"
)

// A machine that is slow, or stands still for a while, loses nothing.
func TestWhatArrivesLateIsNotLost(t *testing.T) {
	for _, tt := range []struct {
		name string
		sent uint64
		want uint64
	}{{"the last comes late", 3, 3}, {"one is lost", 4, 3}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin, got := time.Now(), uint64(0)
				AwaitAll(tt.sent, func() uint64 {
					// Each comes later than 600 ms after the one before.
					got = min(uint64(time.Since(begin)/(700*time.Millisecond)), 3)
					return got
				})
				if got != tt.want {
					t.Errorf("of %d datagrams %d were waited for, want %d", tt.sent, got, tt.want)
				}
			})
		})
	}
}
