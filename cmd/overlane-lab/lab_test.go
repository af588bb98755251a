// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/cli/clitest"
)

// TestMain puts an overlane beside the tests, which is never started.
func TestMain(m *testing.M) {
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

// stateFlag keeps labs of the machine out of sight of what opens one.
func stateFlag(args, dir string) []string {
	if verb := strings.Fields(args)[0]; (verb == "run" || verb == "up") && !strings.HasSuffix(args, "--seconds") {
		return []string{"--state-dir", dir}
	}
	return nil
}
