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

const rootLong = `overlane gives a container overlay network (VXLAN, Geneve) the speed and the
latency of the host network, on the kernel that the node already runs, and
leaves no trace when it is switched off.

An overlay packet crosses three devices on its way in: the underlay NIC, the
tunnel device and the container's veth. Linux runs all three stages of a flow on
one core. overlane spreads them over several, in order, when that helps, and
steps back when it does not.

Start with "overlane doctor", which only looks. "overlane plan" shows what
"overlane run" would change, and "overlane off" takes all of it back, at any
time, with or without a running daemon.`

func newRootCmd() *cobra.Command {
	cobra.EnableCommandSorting = false // in the order in which a newcomer needs them
	root := &cobra.Command{
		Use:   "overlane",
		Short: "the speed of the host network for container overlay networks",
		Long:  rootLong,
		Example: `  overlane doctor          what this node can get, and what slows it down
  overlane plan            what would be changed, with the way back
  overlane run             act, until told to stop
  overlane status          what it does and why
  overlane off             back to the stock path
  overlane lab run udp-one the proof, in network namespaces of its own`,
		Version:           buildVersion(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetVersionTemplate("overlane {{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringVar(&global.stateDir, "state-dir", apply.DefaultStateDir, "folder `DIR` of lock, journal and control socket")
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
