// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/printable"
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

Begin with "overlane doctor", which only looks. "overlane plan" shows what
"overlane run" would change. "overlane off" takes all of it back at any time,
with or without a running daemon.`

func newRootCmd() *cobra.Command {
	cobra.EnableCommandSorting = false // in the order in which a newcomer needs them
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
		Version:           buildVersion(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetVersionTemplate("overlane {{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringVar(&global.stateDir, "state-dir", apply.DefaultStateDir, "keep lock, journal and control socket below `DIR`")
	flags.BoolVar(&global.json, "json", false, "print JSON instead of text")
	root.Flags().Bool("version", false, "print the version")
	root.AddCommand(
		newDoctorCmd(), newRunCmd(), newPlanCmd(), newStatusCmd(), newPrioCmd(), newOffCmd(), newLabCmd(),
		newVersionCmd(), newGuardianCmd(), newManCmd(), newSetCoresCmd(), newResteerCmd(),
	)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(cmd.OutOrStdout(), cmd) })
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError("%w (see: %s --help)", err, cmd.CommandPath())
	})
	usageCodes(root)
	return root
}

// usageCodes makes every way of calling a verb wrongly a usage error, for this
// verb and those below: cobra has errors of its own for some and silence for
// others.
func usageCodes(cmd *cobra.Command) {
	cmd.SuggestionsMinimumDistance = 2
	for _, sub := range cmd.Commands() {
		usageCodes(sub)
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return fmt.Errorf("unknown verb %q%s", args[0], verbs(cmd, args[0]))
		}
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	check := cmd.Args
	if check == nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil {
			return nil
		}
		if !cmd.HasSubCommands() && cobra.NoArgs(cmd, args) != nil && check(cmd, nil) == nil {
			err = fmt.Errorf("unexpected argument %q", args[0])
		}
		return usageError("%w (see: %s --help)", err, cmd.CommandPath())
	}
}

// verbs says what would have been understood.
func verbs(cmd *cobra.Command, typed string) string {
	if near := cmd.SuggestionsFor(typed); len(near) > 0 {
		return "; did you mean " + strings.Join(near, " or ") + "?"
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return "; there are: " + strings.Join(names, ", ")
}

func printJSON(w io.Writer, v any) error {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w, printable.JSON(b.String()))
	return err
}

func newVersionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if global.json {
				return printJSON(cmd.OutOrStdout(), map[string]string{"version": buildVersion()})
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "overlane", buildVersion())
			return err
		},
	}
}
