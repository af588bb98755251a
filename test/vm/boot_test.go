// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/test/speed"
)

func TestKernelsComplaintsAreSeenInEachKernelsWords(t *testing.T) {
	for _, tt := range []struct {
		line string
		want bool
	}{
		{"[    9.1] WARNING: CPU: 1 PID: 73 at net/core/dev.c:5678 f+0x1/0x2", true},  // 6.12
		{"[    9.1] WARNING: net/core/dev.c:5678 at f+0x1/0x2, CPU#1: test/73", true}, // 7.x
		{"[    9.1] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000200", true},
		{"[    9.1] BUG: kernel NULL pointer dereference, address: 0000000000000000", true},
		{"[    9.1] WARNING: CPU: 2 PID: 3304 at arch/x86/kernel/traps.c:1120 exc_debug_kernel+0xca/0x160\n[    9.2] WARNING: CPU: 1 PID: 73 at net/core/dev.c:5678 f+0x1/0x2", true},
		{"[    9.1] WARNING: CPU: 2 PID: 3304 at arch/x86/kernel/traps.c:1120 exc_debug_kernel+0xca/0x160", false},
		{"[    0.1] WARNING: Spectre v2 mitigation leaves CPU vulnerable to RETBleed attacks", false},
		{"[    0.1] Spectre V2 : WARNING: CPU does not support IBPB.", false},
	} {
		console := filepath.Join(t.TempDir(), "console.txt")
		if err := os.WriteFile(console, []byte("[    0.0] Linux\n"+tt.line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		m := &Machine{Kernel: &Kernel{Release: "test"}}
		if err := m.sane(console); (err != nil) != tt.want {
			t.Errorf("%s: got %v, want an error: %v", tt.line, err, tt.want)
		}
	}
}

// A machine that never gets to its tests is a failure that shows why.
func TestAMachineWhoseInitPanicsIsReportedWithItsConsole(t *testing.T) {
	m := brokenMachine(t, `panic("init has fallen over on purpose")`)
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	records, err := m.Start(ctx)
	if err == nil || !strings.Contains(err.Error(), "Kernel panic - not syncing: Attempted to kill init") {
		t.Errorf("got %v, want the kernel's panic", err)
	}
	if !strings.Contains(m.Tail(), "init has fallen over on purpose") {
		t.Errorf("init's last words are not on the console:\n%s", m.Tail())
	}
	if _, err := Outcomes(records, m.Runs); err == nil {
		t.Error("the plan counts as carried out")
	}
}

func TestAMachineThatDoesNotEndInTimeIsEndedAndReported(t *testing.T) {
	m := brokenMachine(t, "for {\n\t}")
	late := errors.New("too late")
	// Wherever its boot is by then: it never ends by itself.
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, late)
	defer cancel()
	if _, err := m.Start(ctx); !errors.Is(err, late) {
		t.Errorf("got %v, want %v", err, late)
	}
}

// brokenMachine is the oldest kernel with an init of its own.
func brokenMachine(t *testing.T, body string) *Machine {
	t.Helper()
	speed.Long(t)
	if _, err := exec.LookPath(Program); err != nil {
		t.Skip("needs " + Program)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	k, err := Lines[0].Kernel(t.Context(), filepath.Join(cache, "overlane-vm"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {\n\t"+body+"\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &Machine{Kernel: k, Dir: t.ArtifactDir(), Init: filepath.Join(dir, "init"), Boot: usual}
	Build(t, m.Init, "build", source)
	return m
}
