// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/shell"
)

// labProgram is beside overlane, or in PATH: what makes traffic is no part of what runs as root on a node.
const labProgram = "overlane-lab"

func newLabCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Testbed and benchmark, in network namespaces of its own",
		Args:  cobra.ArbitraryArgs,
		RunE:  func(_ *cobra.Command, args []string) error { return lab(args) },
	}
	cli.Elsewhere(cmd)
	return cmd
}

// lab becomes the lab's program.
func lab(args []string) error {
	path, dir, err := cli.Beside(labProgram)
	if errors.Is(err, exec.ErrNotFound) {
		return cli.Unsupported(fmt.Sprintf("the lab is the program %s, which is neither in %s nor in PATH", labProgram, dir), shell.Command("make build  # which builds both"))
	}
	if err != nil {
		return err
	}
	if err := unix.Exec(path, append([]string{path}, args...), os.Environ()); err != nil {
		return fmt.Errorf("run %s: %w", path, err)
	}
	return nil
}
