// SPDX-License-Identifier: Apache-2.0

// Package patience makes what tests wait at most longer on slow machines. It only decides
// when a test has failed, never whether.
package patience

import (
	"os"
	"strconv"
	"time"
)

// Slowness is the variable with how many times slower a machine is than one that tests
// were written on.
const Slowness = "OVERLANE_TEST_SLOWNESS"

// For is what a usual time is on this machine.
func For(usual time.Duration) time.Duration {
	if x, err := strconv.ParseFloat(os.Getenv(Slowness), 64); err == nil && x > 1 {
		return time.Duration(x * float64(usual))
	}
	return usual
}
