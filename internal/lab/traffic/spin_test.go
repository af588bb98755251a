// SPDX-License-Identifier: Apache-2.0

package traffic

import "testing"

// What spins takes its core's time until it is stopped, and then none.
func TestSpinnersKeepCoresBusy(t *testing.T) {
	s, err := Spin(loopback(t), []int{0})
	if err != nil {
		t.Fatal(err)
	}
	tid := s.threads[0].tid
	for was := threadTime(t, tid); threadTime(t, tid) == was; {
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}
