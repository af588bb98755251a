// SPDX-License-Identifier: Apache-2.0

// Command overlane gives a container overlay network the speed of the host
// network, on the kernel that the node already runs.
package main

import (
	"os"

	"github.com/overlane/overlane/internal/cli"
)

// version is set by the linker.
var version string

func main() { os.Exit(cli.Main(newRootCmd())) }
