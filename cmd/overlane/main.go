// SPDX-License-Identifier: Apache-2.0

// Command overlane gives a container overlay network the speed of the host
// network, on the kernel that the node already runs.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"

	"github.com/overlane/overlane/internal/control"
)

// version is set by the linker; see Version.
var version string

func main() {
	root := newRootCmd()
	err := root.ExecuteContext(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "overlane: "+message(err))
		// Flags may be what is wrong.
		if !errors.As(err, new(*toldError)) && (global.json || slices.Contains(os.Args[1:], "--json")) {
			_ = printJSON(os.Stdout, failure{control.Schema, message(err), exitCode(err)})
		}
	}
	os.Exit(exitCode(err))
}

// failure is what is printed as JSON where nothing else is.
type failure struct {
	Schema   int    `json:"schema"`
	Error    string `json:"error"`
	ExitCode int    `json:"exit_code"`
}

// buildVersion is the release, or what `go install` knows of it.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
