// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/cli/clitest"
	"github.com/overlane/overlane/internal/lab/bed"
)

// asLab in the environment makes the test's binary the program.
const asLab = "OVERLANE_TEST_AS_LAB"

// TestMain puts an overlane beside the tests, which is never started.
func TestMain(m *testing.M) {
	if os.Getenv(asLab) != "" {
		main()
	}
	own, err := os.Executable()
	if err != nil {
		panic(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(own), "overlane"), nil, 0o755); err != nil {
		panic(err)
	}
	m.Run()
}

func TestPages(t *testing.T) { clitest.Pages(t, newRootCmd()) }

func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"fly":                    `unknown verb "fly"; there are: up, down, run, stages, exec (see: overlane lab --help)`,
		"run":                    `requires at least 1 arg(s), only received 0 (see: overlane lab run --help)`,
		"run nothing":            `scenario "nothing": known are `,
		"up --topology ring":     `"ring"`,
		"exec hB --name x":       `--name behind the host: flags go before it (see: overlane lab exec --help)`,
		"run udp-one --seconds":  `flag needs an argument: --seconds (see: overlane lab run --help)`,
		"stages udp-one":         `unexpected argument "udp-one" (see: overlane lab stages --help)`,
		"run udp-one --rounds x": `invalid argument "x" for "--rounds" flag`,
	} {
		t.Run(args, func(t *testing.T) {
			root := newRootCmd()
			root.SetArgs(append(strings.Fields(args), stateFlag(args, t.TempDir())...))
			err := root.Execute()
			if cli.Code(err) != cli.ExitUsage || !strings.Contains(cli.Message(err), want) {
				t.Errorf("exit code %d: %v; want %d: %s", cli.Code(err), err, cli.ExitUsage, want)
			}
		})
	}
}

// Whatever ends a run, its lab is gone: a signal, a terminal that is closed (SIGHUP), a reader of its output that is
// gone (SIGPIPE).
func TestARunThatIsEndedLeavesNoLab(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE} {
		t.Run(unix.SignalName(end), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "lab")
			var said bytes.Buffer
			// The tests themselves may run under nohup, which has SIGHUP ignored.
			lab := exec.Command("env", "--default-signal=HUP", own, "run", "udp-one", "--variants", "overlay", "--state-dir", dir)
			lab.Env, lab.Stdout, lab.Stderr = append(os.Environ(), asLab+"=1"), &said, &said
			if err := lab.Start(); err != nil {
				t.Fatal(err)
			}
			name := "run" + strconv.Itoa(lab.Process.Pid)
			up := func() bool {
				b, err := bed.Open(dir, name)
				return err == nil && b.Close() == nil
			}
			for deadline := time.Now().Add(time.Minute); !up(); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					_ = lab.Process.Kill()
					_ = lab.Wait()
					t.Fatalf("no lab after a minute: %s", &said)
				}
			}
			if err := lab.Process.Signal(end); err != nil {
				t.Error(err)
			}
			_ = lab.Wait()
			if err := bed.Down(dir, name); !errors.Is(err, bed.ErrNotUp) {
				t.Errorf("the lab %s was left (%v): %s", name, err, &said)
			}
			if lab.ProcessState.ExitCode() != cli.ExitFailure {
				t.Errorf("the run ended with %v: %s", lab.ProcessState, &said)
			}
		})
	}
}

// stateFlag keeps labs of the machine out of sight of what opens one.
func stateFlag(args, dir string) []string {
	if verb := strings.Fields(args)[0]; (verb == "run" || verb == "up") && !strings.HasSuffix(args, "--seconds") {
		return []string{"--state-dir", dir}
	}
	return nil
}
