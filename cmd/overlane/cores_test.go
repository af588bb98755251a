// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/overlane/overlane/internal/config"
)

func TestCoresThatAreSetApartAreNotUsed(t *testing.T) {
	apart, err := readCores(cpus(), "isolated")
	if err != nil {
		t.Fatal(err)
	}
	if len(apart) == 0 {
		t.Skip("needs isolated cores (boot option isolcpus)")
	}
	cores, err := housekeepingCores(cpus())
	if err != nil {
		t.Fatal(err)
	}
	spared, err := sparedCores(cpus(), cores)
	if err != nil {
		t.Fatal(err)
	}
	if named, err := sparedCores(cpus(), apart); err != nil || len(named) > 0 {
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

// A core that is offline at a start or a reload, or plugged in later, is used once it is online: the daemon takes those
// away that are not.
func TestCoresThatAreOfflineMayCome(t *testing.T) {
	sys := fstest.MapFS{
		"possible": {Data: []byte("0-5\n")}, "present": {Data: []byte("0-3\n")}, "online": {Data: []byte("0,2\n")}, "isolated": {Data: []byte("2\n")}, "nohz_full": {Data: []byte(" (null)\n")},
	}
	if cores, err := housekeepingCores(sys); err != nil || !slices.Equal(cores, []int{0, 1, 3, 4, 5}) {
		t.Errorf("used without configuration: %v, %v", cores, err)
	}
	present, apart, err := presentAndApart(sys)
	if err != nil {
		t.Fatal(err)
	}
	for cores, fits := range map[string]bool{"1": true, "0-1,3": true, "3-4": false, "2-3": false} {
		cfg, err := config.Parse("f", []byte("cores: "+cores))
		if err != nil {
			t.Fatal(err)
		}
		if err := cfg.Validate(present, apart); (err == nil) != fits {
			t.Errorf("cores: %s: %v", cores, err)
		}
	}
	sys["isolated"] = &fstest.MapFile{Data: []byte("0-3\n")}
	if cores, err := housekeepingCores(sys); err == nil {
		t.Errorf("with all cores set apart %v are used", cores)
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
