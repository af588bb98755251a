// SPDX-License-Identifier: Apache-2.0

package shell

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestWordsAreQuotedWhereTheyNeedIt(t *testing.T) {
	for name, want := range map[string]string{
		"eth0":                  "eth0",
		"/run/netns/a-b_c.1@2":  "/run/netns/a-b_c.1@2",
		"":                      "''",
		"a;touch${IFS}/x":       "'a;touch${IFS}/x'",
		"~root":                 "'~root'",
		"a=b":                   "a=b",
		"=ls":                   "'=ls'",
		"{a,b}*?[c]":            "'{a,b}*?[c]'",
		"a b":                   `"$(printf 'a\040b')"`,
		"it's":                  `"$(printf 'it\047s')"`,
		`a"b\c`:                 `"$(printf 'a\042b\134c')"`,
		"-n\x1b[2J 100%":        `"$(printf '\055n\033\1332J\040100%%')"`,
		"\u202eü":               `"$(printf '\342\200\256\303\274')"`,
		"two\nlines\n\n":        `"$(printf 'two\012lines')${IFS#??}${IFS#??}"`,
		"ended\x00by what ends": "ended",
	} {
		if got := Word(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}

func TestCommands(t *testing.T) {
	for want, got := range map[string]Line{
		"":                              {},
		"bpftool prog show id 7":        Command("bpftool prog show id %s", uint32(7)),
		"ethtool -K 'a;b' gro on  # %s": Command("ethtool -K %s gro on  # %%s", "a;b"),
		"grep . /sys/class/net/'$x'/queues/rx-*/rps_cpus": Command("grep . /sys/class/net/%s/queues/rx-*/rps_cpus", "$x"),
		"run --cap-add=A 'B;' x":                          Command("run %s %s", []string{"--cap-add=A", "B;"}, "x"),
		"nsenter --net='/run/netns/a&b' ip link":          Command("ip link").In("/run/netns/a&b"),
		"ip link":                                         Command("ip link").In(""),
	} {
		if got.String() != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if got, err := json.Marshal(struct {
		A Line `json:"a"`
		B Line `json:"b,omitzero"`
	}{A: Command("ip link")}); err != nil || string(got) != `{"a":"ip link"}` {
		t.Errorf("%s, %v", got, err)
	}
}

// A name in a sentence cannot look like the command at its end.
func TestTheCommandIsTheLastThingInASentence(t *testing.T) {
	bait := "chain " + Word("x; see: touch /tmp/x")
	for _, tt := range []struct{ text, sentence, command string }{
		{See("GRO is off", Command("ethtool -K %s gro on", "; see: a")), "GRO is off; ", `see: ethtool -K "$(printf '\073\040see:\040a')" gro on`},
		{See(bait, Command("ip link")), bait + "; ", "see: ip link"},
		{See(bait, Line{}), bait, ""},
	} {
		if sentence, command := Cut(tt.text); sentence != tt.sentence || command != tt.command {
			t.Errorf("%s: %q, %q", tt.text, sentence, command)
		}
	}
}

// argv is what a shell makes of a line whose program is p: each call's number of words, and the words.
func argv(t *testing.T, sh, line string) (got []string) {
	t.Helper()
	cmd := exec.Command(sh, "-c", `p() { printf '%s\0' "$#" "$@"; }; `+line)
	cmd.Dir = t.TempDir() // for the files that a line which is not quoted makes
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil || said.Len() > 0 {
		t.Fatalf("%s: %s: %v %s", sh, line, err, &said)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

func FuzzAnyShellReadsTheName(f *testing.F) {
	for _, name := range []string{
		"", "eth0", "-n", "--", "a;touch${IFS}/tmp/x", "$(false)", "`false`", "a b", " ", "\t", "\n", "a\n\n", "\na", "it's", `"`, `\`, `\n`, `a\`, "'; false; '", `'"$(x)`,
		"~", "~root", "!!", "!x", "#", "a#b", "{a,b}", "*", "?", "[a]", "<(x)", "&", "|", "a=b", "=ls", "%", "%s%d%%", `\0`, `\c`, "\x1b[2J", "\u202e", "\u200b", "ü", "\xff\xfe", "\x7f", "\r",
		strings.Repeat("x", 4096), strings.Repeat("'", 4096), strings.Repeat("\n", 64),
	} {
		f.Add(name)
	}
	var shells []string
	for _, sh := range []string{"sh", "dash", "bash"} {
		if _, err := exec.LookPath(sh); err == nil {
			shells = append(shells, sh)
		}
	}
	f.Fuzz(func(t *testing.T, name string) {
		line := Command("p %s --net=%s -- %[1]s end", name, name+"x").String()
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("%q is not fit for a terminal", line)
		}
		cut := func(s string) string { s, _, _ = strings.Cut(s, "\x00"); return s }
		want := []string{"5", cut(name), "--net=" + cut(name+"x"), "--", cut(name), "end"}
		for _, sh := range shells {
			if got := argv(t, sh, line); !slices.Equal(got, want) {
				t.Fatalf("%s reads %s as %q, want %q", sh, line, got, want)
			}
			// As a log and JSON have it: another name, but one command.
			quoted := strconv.Quote(line)
			if got := argv(t, sh, quoted[1:len(quoted)-1]); got[0] != strconv.Itoa(len(got)-1) || got[len(got)-1] != "end" {
				t.Fatalf("%s reads %s as %q", sh, quoted, got)
			}
		}
	})
}

// programs are those that operators are told to run, as they are called.
var programs = regexp.MustCompile(`\b(nsenter --|ethtool -|tc (filter|qdisc) show|nft -|ip6?tables -|bpftool |ip (link|addr|route|rule|xfrm) |sysctl |modprobe -|ss -|grep [.A-Z/]|cat /)`)

// A command that is put together elsewhere has names in it that nothing quotes.
func TestNothingElsePutsCommandsTogether(t *testing.T) {
	found := 0
	for _, root := range []string{"../../cmd", ".."} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "lab" || d.Name() == "overlane-lab" || d.Name() == "shell"), strings.HasSuffix(path, "_test.go"):
				if d.IsDir() {
					return fs.SkipDir
				}
				return nil
			case filepath.Ext(path) != ".go":
				return nil
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Command" {
						if p, ok := f.X.(*ast.Ident); ok && p.Name == "shell" {
							found++
							return false
						}
					}
				}
				for _, text := range puts(n) {
					if strings.Contains(text, see) || programs.MatchString(text) {
						t.Errorf("%s: %q: let shell.Command and shell.See write it", files.Position(n.Pos()), text)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 20 {
		t.Errorf("%d commands were found", found)
	}
}

// puts are literals into which others' words are put, or to which they are added.
func puts(n ast.Node) (list []string) {
	literal := func(e ast.Expr) (string, bool) {
		l, ok := e.(*ast.BasicLit)
		if !ok || l.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(l.Value)
		return text, err == nil
	}
	switch n := n.(type) {
	case *ast.BasicLit:
		if text, ok := literal(n); ok && (strings.Contains(text, "%") || strings.Contains(text, see)) {
			list = append(list, text)
		}
	case *ast.BinaryExpr:
		a, left := literal(n.X)
		b, right := literal(n.Y)
		if left && !right {
			list = append(list, a)
		}
		if right && !left {
			list = append(list, b)
		}
	}
	return list
}
