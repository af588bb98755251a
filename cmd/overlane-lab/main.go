// SPDX-License-Identifier: Apache-2.0

// Command overlane-lab is `overlane lab`: a testbed and a benchmark in network namespaces of its own. It is a
// program of its own so that nothing that makes traffic is in the one that runs as root on a node.
package main

import (
	"os"

	"github.com/overlane/overlane/internal/cli"
)

// version is set by the linker.
var version string

func main() { os.Exit(cli.Main(newRootCmd())) }
