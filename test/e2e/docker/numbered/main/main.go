// SPDX-License-Identifier: Apache-2.0

// Command main is what runs in the containers.
package main

import (
	"fmt"
	"os"

	"github.com/overlane/overlane/test/e2e/docker/numbered"
)

func main() {
	if err := numbered.Main(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
