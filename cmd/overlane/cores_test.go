// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
)

func TestCoresThatAreSetApartAreNotUsed(t *testing.T) {
	apart, err := readCores("isolated")
	if err != nil {
		t.Fatal(err)
	}
	if len(apart) == 0 {
		t.Skip("needs isolated cores (boot option isolcpus)")
	}
	cores, err := housekeepingCores()
	if err != nil {
		t.Fatal(err)
	}
	online, err := onlineCores()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range online {
		if slices.Contains(cores, c) == slices.Contains(apart, c) {
			t.Errorf("core %d: online are %v, isolated %v, used %v", c, online, apart, cores)
		}
	}
}
