// SPDX-License-Identifier: Apache-2.0

// Package cli is what the command lines of overlane and of its lab share: errors and the exit codes that they
// lead to, help, and manual pages.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/printable"
)

// Main runs a program that Setup has made ready, tells of its error, and returns its exit code.
func Main(root *cobra.Command) int {
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return ExitOK
	}
	fmt.Fprintln(os.Stderr, root.DisplayName()+": "+Message(err))
	// Flags may be what is wrong.
	asJSON := slices.Contains(os.Args[1:], "--json")
	if all := root.PersistentFlags().Lookup("json"); all != nil && all.Value.String() == "true" {
		asJSON = true
	}
	if asJSON && !errors.As(err, new(*toldError)) {
		_ = JSON(os.Stdout, failure{control.Schema, Message(err), Code(err)})
	}
	return Code(err)
}

// failure is what is printed as JSON where nothing else is.
type failure struct {
	Schema   int    `json:"schema"`
	Error    string `json:"error"`
	ExitCode int    `json:"exit_code"`
}

// Version is the release that the linker wrote, or what `go install` knows of it.
func Version(linked string) string {
	if linked != "" {
		return linked
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// Beside finds another program in the folder dir of this one, or in PATH. The error is exec.ErrNotFound where it is
// in neither.
func Beside(name string) (path, dir string, err error) {
	own, err := os.Executable()
	if err != nil {
		return "", "", fmt.Errorf("find %s: %w", name, err)
	}
	dir = filepath.Dir(own)
	path = filepath.Join(dir, name)
	if _, err = os.Stat(path); errors.Is(err, os.ErrNotExist) {
		path, err = exec.LookPath(name)
	}
	return path, dir, err
}

// Setup gives a program with all its verbs its help, its version and its errors.
func Setup(root *cobra.Command) {
	cobra.EnableCommandSorting = false // in the order in which a newcomer needs them
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetVersionTemplate(root.DisplayName() + " {{.Version}}\n")
	root.Flags().Bool("version", false, "print the version")
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(cmd.OutOrStdout(), cmd) })
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usage("%w (see: %s --help)", err, cmd.CommandPath())
	})
	usageCodes(root)
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
		return Usage("%w (see: %s --help)", err, cmd.CommandPath())
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

// JSON prints a value, indented, with what a terminal would take for orders spelt out.
func JSON(w io.Writer, v any) error {
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
