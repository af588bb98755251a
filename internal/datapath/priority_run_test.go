// SPDX-License-Identifier: Apache-2.0

package datapath

import "testing"

func TestPriorityLoads(t *testing.T) {
	p, err := load(t).LoadPriority()
	if err != nil {
		t.Fatalf("%+v", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}
