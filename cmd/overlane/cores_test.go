// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
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
	spared, err := sparedCores(cores)
	if err != nil {
		t.Fatal(err)
	}
	if named, err := sparedCores(apart); err != nil || len(named) > 0 {
		t.Errorf("spared are %v, %v, though cores %v are to be used", named, err, apart)
	}
	online, err := onlineCores()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range online {
		if slices.Contains(cores, c) == slices.Contains(apart, c) {
			t.Errorf("core %d: online are %v, isolated %v, used %v", c, online, apart, cores)
		}
		if slices.Contains(spared, c) != slices.Contains(apart, c) {
			t.Errorf("core %d: isolated are %v, spared %v", c, apart, spared)
		}
	}
}

// The blanks are as many as the machine has possible CPUs, which is not known here.
func TestAListOfCoresThatDoesNotExistIsEmpty(t *testing.T) {
	for _, text := range []string{"(null)\n", " (null)\n", "  (null)\n", strings.Repeat(" ", 506) + "(null)\n", "\n", ""} {
		if list, err := parseCores(text); err != nil || len(list) != 0 {
			t.Errorf("%q: %v, %v", text, list, err)
		}
	}
	if list, err := parseCores("2-3,7\n"); err != nil || !slices.Equal(list, []int{2, 3, 7}) {
		t.Errorf("%v, %v", list, err)
	}
	if list, err := parseCores("(nul)\n"); err == nil {
		t.Errorf("taken for %v", list)
	}
}
