// SPDX-License-Identifier: Apache-2.0

package nlsock

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A dump that keeps being interrupted is repeated a few times, and a long one once: the caller has other things to do.
func TestInterruptedDumpsAreRepeatedForAMomentOnly(t *testing.T) {
	for _, tc := range []struct {
		takes       time.Duration
		whole, made int // from which one on it is not interrupted, and how many are made
	}{
		{time.Millisecond, 1, 1}, {time.Millisecond, 3, 3}, {time.Millisecond, 9, 5}, {repeatFor, 2, 2}, {repeatFor, 9, 2}, {repeatFor / 4, 9, 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			made := 0
			err := whole(func() error {
				time.Sleep(tc.takes)
				if made++; made < tc.whole {
					return ErrInterrupted
				}
				return nil
			})
			if made != tc.made || errors.Is(err, ErrInterrupted) != (tc.whole > tc.made) {
				t.Errorf("of dumps of %s, whole from number %d on, %d were made, want %d: %v", tc.takes, tc.whole, made, tc.made, err)
			}
		})
	}
}
