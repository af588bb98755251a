// SPDX-License-Identifier: Apache-2.0

// Package rig is what the end-to-end tests stand on: the real program, built
// once for a test binary, running in the receiving host of a lab bed, checked
// traffic through that bed, and waiting for what has to happen.
package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/patience"
	"github.com/overlane/overlane/test/residue"
)

// Patience bounds every wait: nothing is waited for that does not come.
var Patience = patience.For(time.Minute)

// work holds what a test binary makes: short, for the paths of sockets.
var work string

// Main runs the tests of a package and removes what they have built.
func Main(m *testing.M) {
	dir, err := os.MkdirTemp("", "ole2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	work = dir
	// Others than root run the program, too.
	if err := os.Chmod(dir, 0o711); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

var serial atomic.Uint64

// folder makes an empty folder of this test's own.
func folder(tb testing.TB) string {
	tb.Helper()
	dir := filepath.Join(work, fmt.Sprint(serial.Add(1)))
	if err := os.Mkdir(dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// NeedRoot skips the test for others than root.
func NeedRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root: builds network namespaces and loads BPF programs")
	}
}

// NeedCores skips the test on machines with fewer cores.
func NeedCores(tb testing.TB, n int) {
	tb.Helper()
	if runtime.NumCPU() < n {
		tb.Skipf("needs %d cores: on one there is nothing to steer to", n)
	}
}

var builds struct {
	sync.Mutex
	done map[string]error
}

// Program returns the path of the program, built as it is shipped, with the
// given build tags. A binary in OVERLANE_TEST_PROGRAM (with tags: in
// OVERLANE_TEST_PROGRAM_TAG) is used instead, where there is no compiler.
func Program(tb testing.TB, tags ...string) string {
	tb.Helper()
	name := strings.Join(append([]string{"overlane"}, tags...), "_")
	given := strings.ToUpper(strings.Join(append([]string{"OVERLANE_TEST_PROGRAM"}, tags...), "_"))
	if path := os.Getenv(given); path != "" {
		return path
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		tb.Skipf("needs the go command, or the program in %s", given)
	}
	path := filepath.Join(work, name)
	builds.Lock()
	defer builds.Unlock()
	if builds.done == nil {
		builds.done = map[string]error{}
	}
	if _, ok := builds.done[name]; !ok {
		cmd := exec.Command(goTool, "build", "-trimpath", "-tags", strings.Join(tags, ","), "-o", path,
			"github.com/overlane/overlane/cmd/overlane")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("build the program: %w\n%s", err, out)
		}
		builds.done[name] = err
	}
	if err := builds.done[name]; err != nil {
		tb.Fatal(err)
	}
	return path
}

// Lab builds a bed with a name of its own; it goes with the test.
func Lab(tb testing.TB, o bed.Options) *bed.Bed {
	tb.Helper()
	NeedRoot(tb)
	o.Name = fmt.Sprintf("e%x%d", os.Getpid(), serial.Add(1))
	o.StateDir = filepath.Join(folder(tb), "lab")
	b, err := bed.Up(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := b.Down(); err != nil {
			tb.Error(err)
		}
	})
	return b
}

// Scope is everything of the beds, and of the product, that counts as residue.
func Scope(beds ...*bed.Bed) residue.Scope {
	var s residue.Scope
	for _, b := range beds {
		for _, host := range b.HostNames() {
			s.Namespaces = append(s.Namespaces, "/run/netns/ol"+b.Name+"-"+host)
		}
	}
	return s
}

// Until looks every few milliseconds until ok says true, and fails the test
// with what ok said last when that does not come.
func Until(tb testing.TB, what string, ok func() (bool, string)) {
	tb.Helper()
	var said string
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		var done bool
		if done, said = ok(); done {
			return
		}
		if time.Since(start) > Patience {
			tb.Fatalf("not within %s: %s: %s", Patience, what, said)
		}
	}
}

// AwaitAll waits until all that was sent is known to have arrived, or to have been dropped. Nothing tells that the rest is
// lost: it is when known has said the same for many looks.
func AwaitAll(sent uint64, known func() uint64) {
	const enough = 500 // five seconds, and more where the machine stands still
	begun := time.Now()
	for looks, last := 0, uint64(0); looks < enough && time.Since(begun) < Patience; time.Sleep(10 * time.Millisecond) {
		now := known()
		if now >= sent {
			return
		}
		if looks++; now != last {
			looks, last = 0, now
		}
	}
}
