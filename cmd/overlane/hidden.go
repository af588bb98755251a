// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
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
			log := slog.New(slog.NewTextHandler(os.Stderr, nil))
			return apply.RunGuardian(global.stateDir, cookie, adopt, log)
		},
	}
	cmd.Flags().Uint64Var(&cookie, "netns-cookie", 0, "`COOKIE` of the network namespace")
	return cmd
}

// adopt lets a guardian handle the programs of a daemon that has died.
func adopt(held map[string][]int) (apply.Orphans, error) { return datapath.Adopt(held) }

func newSetCoresCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "set-cores LIST",
		Short:  "Change the cores of the running daemon, until it ends",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cores, err := config.ParseCPUList(args[0])
			if err != nil {
				return cli.Usage("cores: %w; allowed: a core list such as 2-7,9", err)
			}
			if err := checkCores(&config.Config{Cores: cores}); err != nil {
				return err
			}
			return withDaemon("set-cores", func(c *control.Client) error { return c.SetCores(cmd.Context(), cores) })
		},
	}
}

func newResteerCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "resteer on|off",
		Short:  "Make flows change lanes all the time, for tests of the order guard",
		Hidden: true,
		Args:   cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{
			"on", "off",
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return withDaemon("resteer", func(c *control.Client) error { return c.Resteer(cmd.Context(), args[0] == "on") })
		},
	}
}
