// SPDX-License-Identifier: Apache-2.0

// Package clitest is what the tests of every program of overlane ask of its help and manual pages.
package clitest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Pages asks of each verb that its help fits a terminal of 80 columns, that its manual page says the same, and that
// groff (where there is one) has nothing to say against that.
func Pages(t *testing.T, root *cobra.Command) {
	dir := t.TempDir()
	root.SetArgs([]string{"man", dir})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	each(root, func(cmd *cobra.Command) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		t.Run(name, func(t *testing.T) {
			help := helpOf(t, cmd)
			for line := range strings.Lines(help) {
				if line = strings.TrimSuffix(line, "\n"); utf8.RuneCountInString(line) > 80 {
					t.Errorf("a line of %d characters: %s", utf8.RuneCountInString(line), line)
				}
			}
			path := filepath.Join(dir, name+".8")
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			man := words(strings.NewReplacer(`\-`, "-", `\e`, `\`, `\&`, "", "\n.PP\n", "\n", "\n.TP\n", "\n", "\n.B ", "\n").Replace(string(data)))
			for _, part := range parts(cmd) {
				switch part = words(part); {
				case part == "":
					t.Error("an empty text")
				case !strings.Contains(words(help), part):
					t.Errorf("the help lacks %q", part)
				case !strings.Contains(man, part):
					t.Errorf("the manual page lacks %q", part)
				}
			}
			sound(t, path)
		})
	})
}

// each calls fn for the verbs that have a page here.
func each(cmd *cobra.Command, fn func(*cobra.Command)) {
	fn(cmd)
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" && !sub.DisableFlagParsing {
			each(sub, fn)
		}
	}
}

func helpOf(t *testing.T, cmd *cobra.Command) string {
	var b bytes.Buffer
	cmd.SetOut(&b)
	defer cmd.SetOut(nil)
	if err := cmd.Help(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// parts are the texts that make up the page of a verb.
func parts(cmd *cobra.Command) []string {
	list := []string{cmd.Short, cmd.CommandPath(), "done"} // the meaning of exit code 0
	if cmd.Annotations["exit-0"] != "" {
		list[2] = cmd.Annotations["exit-0"]
	}
	for paragraph := range strings.SplitSeq(cmd.Long, "\n\n") {
		if paragraph = strings.TrimSpace(paragraph); paragraph != "" {
			list = append(list, strings.Split(paragraph, "\n")...)
		}
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, usage := pflag.UnquoteUsage(f); !f.Hidden && f.Name != "help" {
			list = append(list, "--"+f.Name, usage)
		}
	})
	for _, key := range []string{"keys", "files"} {
		for line := range strings.Lines(cmd.Annotations[key]) {
			list = append(list, strings.Split(line, "\t")...)
		}
	}
	if cmd.Example != "" {
		list = append(list, strings.Split(cmd.Example, "\n")...)
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			list = append(list, sub.Name(), sub.Short)
		}
	}
	return slices.Compact(list)
}

// words has one space where there were several, or a new line.
func words(s string) string { return strings.Join(strings.Fields(s), " ") }

func sound(t *testing.T, page string) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Log("not formatted: there is no groff")
		return
	}
	cmd := exec.Command(groff, "-man", "-Tutf8", "-ww", page)
	var warnings bytes.Buffer
	cmd.Stderr = &warnings
	if err := cmd.Run(); err != nil || warnings.Len() > 0 {
		t.Errorf("%v\n%s", err, warnings.String())
	}
}
