// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/overlane/overlane/internal/printable"
)

// page is a manual page: `--help` and man(1) show the same one.
type page struct {
	name     string // "overlane-status"
	version  string
	short    string
	synopsis string
	long     []string // paragraphs; a line that begins with a space stays on its own
	verbs    [][2]string
	flags    [][2]string // "-v, --verbose", "--config FILE"
	keys     [][2]string // of the configuration file
	examples []string
	exits    [][2]string
	files    [][2]string
	seeAlso  []string
}

// exitKey is an annotation of a verb that says what an exit code means there:
// exitKey + "3". An empty text hides the code.
const exitKey = "exit-"

// Exits is for the Annotations of a verb.
func Exits(meaning map[int]string) map[string]string {
	a := map[string]string{}
	for code, text := range meaning {
		a[exitKey+strconv.Itoa(code)] = text
	}
	return a
}

// Annotations of a verb that hold a list: a name, a tab and what it is, line by line.
const (
	keysKey  = "keys"
	filesKey = "files"
)

// Elsewhere says of a verb that another program has its page and answers for it, --help included.
func Elsewhere(cmd *cobra.Command) {
	cmd.DisableFlagParsing = true
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if err := cmd.RunE(cmd, []string{"--help"}); err != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), cmd.Root().DisplayName()+": "+Message(err))
		}
	})
}

// Keys has the page of a verb tell of the keys of the configuration file.
func Keys(cmd *cobra.Command, keys [][2]string) { list(cmd, keysKey, keys) }

// Files has the page of a verb tell of files.
func Files(cmd *cobra.Command, files [][2]string) { list(cmd, filesKey, files) }

func list(cmd *cobra.Command, key string, items [][2]string) {
	var lines []string
	for _, item := range items {
		lines = append(lines, item[0]+"\t"+item[1])
	}
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[key] = strings.Join(lines, "\n")
}

func listOf(cmd *cobra.Command, key string) (items [][2]string) {
	for line := range strings.Lines(cmd.Annotations[key]) {
		name, what, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		items = append(items, [2]string{name, what})
	}
	return items
}

func newPage(cmd *cobra.Command) page {
	cmd.InitDefaultHelpFlag()
	p := page{
		name:     strings.ReplaceAll(cmd.CommandPath(), " ", "-"),
		short:    cmd.Short,
		synopsis: cmd.UseLine(),
		long:     strings.Split(cmp.Or(strings.TrimSpace(cmd.Long), cmd.Short+"."), "\n\n"),
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			p.verbs = append(p.verbs, [2]string{sub.Name(), sub.Short})
			p.seeAlso = append(p.seeAlso, strings.ReplaceAll(sub.CommandPath(), " ", "-"))
		}
	}
	if len(p.verbs) > 0 && !strings.Contains(p.synopsis, "VERB") {
		p.synopsis = cmd.CommandPath() + " VERB [flags]"
	}
	if cmd.HasParent() {
		p.seeAlso = append(p.seeAlso, strings.ReplaceAll(cmd.Parent().CommandPath(), " ", "-"))
	}
	cmd.Flags().VisitAll(p.addFlag)
	cmd.InheritedFlags().VisitAll(p.addFlag)
	p.keys, p.files = listOf(cmd, keysKey), listOf(cmd, filesKey)
	if ex := strings.TrimRight(cmd.Example, "\n"); ex != "" {
		p.examples = strings.Split(ex, "\n")
	}
	for code, text := range exitMeaning {
		if own, ok := cmd.Annotations[exitKey+strconv.Itoa(code)]; ok {
			text = own
		}
		if text != "" {
			p.exits = append(p.exits, [2]string{strconv.Itoa(code), text})
		}
	}
	return p
}

func (p *page) addFlag(f *pflag.Flag) {
	if f.Hidden || slices.ContainsFunc(p.flags, func(d [2]string) bool { return strings.HasSuffix(strings.Fields(d[0])[0], "--"+f.Name) }) {
		return
	}
	value, usage := pflag.UnquoteUsage(f)
	spelling := "--" + f.Name
	if f.Shorthand != "" {
		spelling = "-" + f.Shorthand + ", " + spelling
	}
	if value != "" {
		spelling += " " + value
	}
	if f.Name == "help" {
		usage = "print this page"
	}
	// Other defaults are worth showing.
	if !slices.Contains([]string{"", "false", "[]", "0"}, f.DefValue) {
		usage += " (default " + f.DefValue + ")"
	}
	p.flags = append(p.flags, [2]string{spelling, usage})
}

// helpWidth leaves the last column free.
const helpWidth = 79

// listed is a line of a list: a word or two, a gap, and what they mean.
var listed = regexp.MustCompile(`^( +\S+(?: \S+)* {2,}| +\S+ )(\S.*)$`)

// items breaks a paragraph into running text, whose first half is empty, and lines of a list.
func items(par string) (list [][2]string) {
	running := false
	for line := range strings.SplitSeq(par, "\n") {
		switch m := listed.FindStringSubmatch(line); {
		case m != nil:
			list = append(list, [2]string{m[1], m[2]})
			running = false
		case running:
			list[len(list)-1][1] += " " + line
		default:
			list = append(list, [2]string{"", line})
			running = true
		}
	}
	return list
}

// printHelp writes the page for a terminal of 80 columns.
func printHelp(w io.Writer, cmd *cobra.Command) {
	p := newPage(cmd)
	fmt.Fprintf(w, "%s\n\nUsage:\n  %s\n", strings.Join(printable.Wrap(strings.ReplaceAll(p.name, "-", " ")+" - "+p.short, helpWidth), "\n"), p.synopsis)
	for _, par := range p.long {
		fmt.Fprintln(w)
		for _, item := range items(par) {
			hanging(w, item[0], item[1])
		}
	}
	pairs(w, "Verbs", p.verbs)
	pairs(w, "Flags", p.flags)
	pairs(w, "Configuration (a YAML file; every key is optional)", p.keys)
	if len(p.examples) > 0 {
		fmt.Fprintf(w, "\nExamples:\n%s\n", strings.Join(p.examples, "\n"))
	}
	pairs(w, "Exit codes", p.exits)
	pairs(w, "Files", p.files)
}

func pairs(w io.Writer, title string, list [][2]string) {
	if len(list) == 0 {
		return
	}
	width := 0
	for _, l := range list {
		width = max(width, len(l[0]))
	}
	fmt.Fprintf(w, "\n%s:\n", title)
	for _, l := range list {
		hanging(w, fmt.Sprintf("  %-*s  ", width, l[0]), l[1])
	}
}

// hanging writes a name, and behind it a text whose lines are all indented as the first.
func hanging(w io.Writer, name, text string) {
	width := utf8.RuneCountInString(name)
	lines := printable.Wrap(text, max(helpWidth-width, 30))
	fmt.Fprintf(w, "%s%s\n", name, strings.Join(lines, "\n"+strings.Repeat(" ", width)))
}
