// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDiffNamesWhatCounts(t *testing.T) {
	const ns = 7
	base := map[key]fact{
		{what: "sysctl net.a"}:                    {"1", changes},
		{what: "process 3"}:                       {"iperf3", appears},
		{ns: ns, what: whatNetns}:                 {"inode 1", any_},
		{ns: ns, dev: "pB", what: whatDevice}:     {"veth, index 2", any_},
		{ns: ns, dev: "pB", what: "rx-0/rps"}:     {"0", any_},
		{ns: ns, dev: "pB", what: "XDP"}:          {"none", any_},
		{ns: ns, dev: "eth0", what: "home's mtu"}: {"1500", changes},
	}
	for _, tt := range []struct {
		name   string
		change func(map[key]fact)
		want   []string
	}{
		{"nothing", func(map[key]fact) {}, []string{}},
		{"a value", func(f map[key]fact) { f[key{ns, "pB", "rx-0/rps"}] = fact{"3", any_} },
			[]string{"changed: hB pB rx-0/rps: was 0, is 3"}},
		{"a sysctl that came is a module's", func(f map[key]fact) { f[key{what: "sysctl net.b"}] = fact{"1", changes} }, []string{}},
		{"a process that ended", func(f map[key]fact) { delete(f, key{what: "process 3"}) }, []string{}},
		{"a process that stayed", func(f map[key]fact) { f[key{what: "process 4"}] = fact{"overlane", appears} },
			[]string{"left behind: process 4: overlane"}},
		{"a setting that went", func(f map[key]fact) { delete(f, key{ns, "pB", "XDP"}) },
			[]string{"gone: hB pB XDP: was none"}},
		{"a device that went takes its settings along", func(f map[key]fact) {
			for k := range f {
				if k.dev == "pB" {
					delete(f, k)
				}
			}
		}, []string{"gone: hB pB device: was veth, index 2"}},
		{"a namespace that went takes its devices along", func(f map[key]fact) {
			for k := range f {
				if k.ns == ns {
					delete(f, k)
				}
			}
		}, []string{"gone: hB network namespace: was inode 1"}},
		{"a namespace that came brings its devices along", func(f map[key]fact) {
			f[key{ns: 8, what: whatNetns}] = fact{"inode 2", any_}
			f[key{ns: 8, dev: "lo", what: whatDevice}] = fact{"none, index 1", any_}
			f[key{ns: 8, dev: "lo", what: "mtu"}] = fact{"65536", any_}
		}, []string{"left behind: netns cookie 8 network namespace: inode 2"}},
		{"where coming and going is free, changing is not", func(f map[key]fact) {
			f[key{ns, "eth0", "home's mtu"}] = fact{"9000", changes}
			f[key{ns, "eth1", "home's mtu"}] = fact{"9000", changes}
		}, []string{"changed: hB eth0 home's mtu: was 1500, is 9000"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			names := map[uint64]string{ns: "hB"}
			before, after := Snapshot{base, names}, Snapshot{map[key]fact{}, names}
			for k, f := range base {
				after.facts[k] = f
			}
			tt.change(after.facts)
			if d := cmp.Diff(tt.want, Diff(before, after)); d != "" {
				t.Error(d)
			}
		})
	}
}

// The judge must not believe the product's own readers, nor their libraries.
func TestJudgeSharesNoCodeWithTheProduct(t *testing.T) {
	others := []string{"golang.org/x/sys/unix", "github.com/overlane/overlane/test/patience"}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue // what plants residue is not what finds it
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range f.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			if strings.Contains(path, ".") && !slices.Contains(others, path) {
				t.Errorf("%s imports %s", file, path)
			}
		}
	}
}
