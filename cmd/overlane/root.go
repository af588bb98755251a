// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/cli"
)

// global are the flags of every verb.
var global struct {
	stateDir string
	json     bool
}

const rootLong = `overlane makes container overlay networks (VXLAN, Geneve) faster, on the kernel
that the node already runs. It needs no kernel module, no change to the network
and no restart of a container.

It acts while that pays: when UDP datagrams of a flow come fast, or when
receiving overlay packets keeps one core busy while others have room. Otherwise
packets take the stock path, as if overlane were not there.

Begin with "overlane doctor", which only reads. "overlane plan" shows what
"overlane run" would change. "overlane off" takes all of it back at any time,
with or without a running daemon.`

func newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "overlane",
		Short: "makes container overlay networks faster",
		Long:  rootLong,
		Example: `  overlane doctor          what this node can get, and what slows it down
  overlane plan            what run would change, with the way back
  overlane run             act, until told to stop
  overlane status          what it does, and why
  overlane off             everything as it was
  overlane lab run udp-one a benchmark, in network namespaces of its own`,
		Version: cli.Version(version),
	}
	flags := root.PersistentFlags()
	flags.StringVar(&global.stateDir, "state-dir", apply.DefaultStateDir, "keep lock, journal and control socket below `DIR`")
	flags.BoolVar(&global.json, "json", false, "print JSON instead of text")
	root.AddCommand(
		newDoctorCmd(), newRunCmd(), newPlanCmd(), newStatusCmd(), newPrioCmd(), newOffCmd(), newLabCmd(),
		newVersionCmd(), newGuardianCmd(), cli.Man(),
	)
	cli.Files(root, [][2]string{
		{"/etc/overlane/config.yaml", "read by the systemd unit; every key is optional"},
		{"/run/overlane/COOKIE/", "lock, journal and control socket of one network namespace"},
	})
	cli.Setup(root)
	return root
}

func newVersionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if global.json {
				return cli.JSON(cmd.OutOrStdout(), map[string]string{"version": cli.Version(version)})
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "overlane", cli.Version(version))
			return err
		},
	}
}
