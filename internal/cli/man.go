// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// Man is the verb that writes the manual pages of its program.
func Man() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages into a folder",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeMan(args[0], cmd.Root())
		},
	}
}

// writeMan writes the page of a verb and of all verbs below.
func writeMan(dir string, cmd *cobra.Command) error {
	if cmd.HasParent() && (!cmd.IsAvailableCommand() || cmd.Name() == "help" || cmd.DisableFlagParsing) {
		return nil
	}
	p := newPage(cmd)
	p.version = cmd.Root().Version
	if err := os.WriteFile(filepath.Join(dir, p.name+".8"), p.roff(), 0o644); err != nil {
		return fmt.Errorf("write manual page: %w", err)
	}
	for _, sub := range cmd.Commands() {
		if err := writeMan(dir, sub); err != nil {
			return err
		}
	}
	return nil
}

// roff spells the page with the macros of man(7).
func (p page) roff() []byte {
	var b bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	list := func(title string, pairs [][2]string) {
		if len(pairs) == 0 {
			return
		}
		line(".SH %s", title)
		for _, l := range pairs {
			line(".TP\n.B %s\n%s", esc(l[0]), esc(l[1]))
		}
	}
	line(`.\" SPDX-License-Identifier: Apache-2.0`)
	line(`.TH %s 8 "" "overlane %s" "overlane"`, strings.ToUpper(esc(p.name)), esc(p.version))
	line(".SH NAME\n%s \\- %s", esc(p.name), esc(p.short))
	line(".SH SYNOPSIS\n.B %s", esc(p.synopsis))
	line(".SH DESCRIPTION")
	for i, par := range p.long {
		if i > 0 {
			line(".PP")
		}
		for _, item := range items(par) {
			if name := strings.TrimSpace(item[0]); name != "" {
				line(".TP\n.B %s", esc(name))
			}
			line("%s", esc(item[1]))
		}
	}
	list("VERBS", p.verbs)
	list("OPTIONS", p.flags)
	list("CONFIGURATION", p.keys)
	if len(p.examples) > 0 {
		line(".SH EXAMPLES\n.nf")
		for _, l := range p.examples {
			line("%s", esc(l))
		}
		line(".fi")
	}
	list("EXIT STATUS", p.exits)
	list("FILES", p.files)
	if len(p.seeAlso) > 0 {
		for i, name := range p.seeAlso {
			p.seeAlso[i] = `\fB` + esc(name) + `\fR(8)`
		}
		line(".SH SEE ALSO\n%s", strings.Join(p.seeAlso, ",\n"))
	}
	return b.Bytes()
}

// esc keeps roff from reading a text as its own language.
func esc(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
