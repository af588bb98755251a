// SPDX-License-Identifier: Apache-2.0

// Command overlane gives a container overlay network the speed of the host
// network, on the kernel that the node already runs.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
)

// version is set by the linker; see Version.
var version string

func main() {
	root := newRootCmd()
	err := root.ExecuteContext(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "overlane: "+message(err))
	}
	os.Exit(exitCode(err))
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
