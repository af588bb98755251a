// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/datapath"
)

// guardianVerb is the verb that a daemon starts its guardian with.
const guardianVerb = "guardian"

func newGuardianCmd() *cobra.Command {
	var cookie uint64
	cmd := &cobra.Command{
		Use:    guardianVerb,
		Short:  "Restore the node when the daemon that started this ends",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			// A guardian handles the programs of a daemon that has died.
			adopt := func(held map[string][]int) (apply.OrphanedLinks, error) { return datapath.Adopt(held) }
			log := slog.New(slog.NewTextHandler(os.Stderr, nil))
			return apply.RunGuardian(global.stateDir, cookie, adopt, log)
		},
	}
	cmd.Flags().Uint64Var(&cookie, "netns-cookie", 0, "`COOKIE` of the network namespace")
	return cmd
}
