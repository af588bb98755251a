// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/rules"
)

var ignoreSource = cmpopts.IgnoreFields(Config{}, "Source")

// with returns the defaults, changed.
func with(change func(*Config)) *Config {
	c := Default()
	change(c)
	return c
}

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		want *Config
	}{
		"empty":          {"", Default()},
		"only comments":  {"# nothing\n\n# here\n", Default()},
		"empty document": {"---\n", Default()},
		"everything": {`
underlays: [eth0, bond0.7]   # two
cores: 2-7,9
pipeline: forced
microflows: {mode: off, batch: 64, cores: 3, elephant: 2.5Gbit, udp-order: none, hold: 250ms}
aggregate: forced
express: auto
bridge-netfilter: skip-unused
tier: xdp
priority:
  mode: off
  classify: auto
  threads: off
  bulk-share: 30%
  rules:
  - {name: web, proto: tcp, port: 80}
  - name: batch   # everything of a rack
    cidr: 10.32.7.0/24
    class: bulk
limits: {busy-cores: 65%}
metrics: "[::1]:9000"
`, &Config{
			Underlays:  []string{"eth0", "bond0.7"},
			Cores:      CPUList{2, 3, 4, 5, 6, 7, 9},
			Pipeline:   ModeForced,
			Tier:       TierXDP,
			Microflows: Microflows{Mode: ModeOff, Batch: 64, Cores: 3, Elephant: 2500000000, UDPOrder: OrderNone, Hold: 250 * time.Millisecond},
			Aggregate:  ModeForced,
			Express:    ModeAuto,

			BridgeNetfilter: HooksUnused,

			Priority: Priority{Mode: PriorityOff, Classify: ClassifyAuto, Threads: ThreadsOff, BulkShare: 30, Rules: []rules.Rule{
				{Name: "web", Class: rules.Latency, Proto: 6, Port: 80, Network: rules.Overlay},
				{Name: "batch", Class: rules.Bulk, Prefix: netip.MustParsePrefix("10.32.7.0/24"), Network: rules.Overlay},
			}},
			Limits:  Limits{BusyCores: 65},
			Metrics: "[::1]:9000",
		}},
		"block style": {"limits:\n  busy-cores: 1%\nunderlays:\n  - eth0\n", with(func(c *Config) {
			c.Limits.BusyCores, c.Underlays = 1, []string{"eth0"}
		})},
		"one core is a number in YAML": {"cores: 3", with(func(c *Config) { c.Cores = CPUList{3} })},
		"off is a bool in old YAML":    {"pipeline: off\nmetrics: off", with(func(c *Config) { c.Pipeline, c.Metrics = ModeOff, "" })},
		"quotes":                       {`{"pipeline": "off", 'tier': 'tc'}`, with(func(c *Config) { c.Pipeline, c.Tier = ModeOff, TierTC })},
		"a device named like a number": {"underlays: [0123]", with(func(c *Config) { c.Underlays = []string{"0123"} })},
		"windows line ends":            {"pipeline: off\r\ntier: tc\r\n", with(func(c *Config) { c.Pipeline, c.Tier = ModeOff, TierTC })},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse("f", []byte(tc.in))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got, ignoreSource, samePrefix); d != "" {
				t.Error(d)
			}
		})
	}
}

var samePrefix = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// As many rules as there may be fit into a file.
func TestThousandsOfRules(t *testing.T) {
	var b strings.Builder
	b.WriteString("priority:\n  rules:\n")
	for i := range rules.MaxRules {
		fmt.Fprintf(&b, "  - {name: service-number-%d, class: latency, proto: tcp, port: %d, cidr: 2001:db8:aaaa:bbbb::%x/128}\n", i, i+1, i+1)
	}
	c, err := Parse("f", []byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(c.Priority.Rules); n != rules.MaxRules {
		t.Errorf("%d rules", n)
	}
}

func TestParseErrorsNameLineAndWhatIsAllowed(t *testing.T) {
	const all = "underlays, cores, pipeline, microflows, aggregate, express, bridge-netfilter, tier, priority, limits, metrics"
	for name, tc := range map[string]struct{ in, want string }{
		"unknown key":          {"# c\npipline: auto", `f:2: unknown key "pipline"; allowed: ` + all},
		"express always":       {"express: always", `f:1: express: unknown value "always"; allowed: off, auto, forced`},
		"unknown nested key":   {"limits:\n  busy: 3%", `f:2: limits: unknown key "busy"; allowed: busy-cores`},
		"a key of the past":    {"microflows: {delay: 1ms}", `f:1: microflows: unknown key "delay"; allowed: mode, batch, cores, elephant, udp-order, hold`},
		"case matters":         {"Pipeline: off", `f:1: unknown key "Pipeline"; allowed: ` + all},
		"bad word":             {"tier: auto\npipeline: on", `f:2: pipeline: unknown value "on"; allowed: auto, off, forced`},
		"bad tier":             {"tier: 2", `f:1: tier: unknown value "2"; allowed: auto, tc, xdp`},
		"list for a word":      {"tier: [tc]", `f:1: tier: expected one plain value; allowed: auto, tc, xdp`},
		"no value":             {"pipeline:\n", `f:1: pipeline: has no value; leave the key out for the default`},
		"null":                 {"cores: ~", `f:1: cores: has no value; leave the key out for the default`},
		"bad core":             {"cores: 1-x", `f:1: cores: "x" is not a core number; allowed: a core list such as 2-7,9`},
		"no core":              {`cores: ""`, `f:1: cores: names no core; allowed: a core list such as 2-7,9`},
		"huge core":            {"cores: 0-99999", `f:1: cores: core 99999 is above the highest possible, 8191; allowed: a core list such as 2-7,9`},
		"negative core":        {"cores: -1", `f:1: cores: "" is not a core number; allowed: a core list such as 2-7,9`},
		"word for a list":      {"underlays: eth0", `f:1: underlays: expected a list; allowed: a list of device names such as [eth0, eth1]`},
		"empty list":           {"underlays: []", `f:1: underlays: names no device; leave the key out for every device that carries a tunnel`},
		"twice in list":        {"underlays:\n- eth0\n- eth0", `f:3: underlays: "eth0" appears twice`},
		"path as device":       {"underlays: [../eth0]", `f:1: underlays: "../eth0" cannot be a device name; allowed: a list of device names such as [eth0, eth1]`},
		"long device":          {"underlays: [abcdefghijklmnop]", `f:1: underlays: "abcdefghijklmnop" cannot be a device name; allowed: a list of device names such as [eth0, eth1]`},
		"nested list":          {"underlays: [[eth0]]", `f:1: underlays: expected one plain value; allowed: a list of device names such as [eth0, eth1]`},
		"percent without sign": {"limits: {busy-cores: 80}", `f:1: limits.busy-cores: "80" is not a percentage; allowed: 1% to 100%`},
		"percent zero":         {"limits: {busy-cores: 0%}", `f:1: limits.busy-cores: "0%" is not a percentage; allowed: 1% to 100%`},
		"percent above":        {"limits: {busy-cores: 101%}", `f:1: limits.busy-cores: "101%" is not a percentage; allowed: 1% to 100%`},
		"percent negative":     {"limits: {busy-cores: -1%}", `f:1: limits.busy-cores: "-1%" is not a percentage; allowed: 1% to 100%`},
		"micro-flow hold":      {"microflows: {hold: 2s}", `f:1: microflows.hold: "2s" is no such time; allowed: 10ms to 1s`},
		"micro-flow order":     {"microflows: {udp-order: exactly}", `f:1: microflows.udp-order: unknown value "exactly"; allowed: exact, none`},
		"tiny micro-flows":     {"microflows: {batch: 7}", `f:1: microflows.batch: "7" is no such number; allowed: 8 to 512`},
		"huge micro-flows":     {"microflows: {batch: 513}", `f:1: microflows.batch: "513" is no such number; allowed: 8 to 512`},
		"no branch":            {"microflows:\n  cores: 0", `f:2: microflows.cores: "0" is no such number; allowed: 1 to 8`},
		"elephant in bytes":    {"microflows: {elephant: 3GB}", `f:1: microflows.elephant: "3GB" is not a rate; allowed: auto, or a rate such as 500Mbit or 3Gbit`},
		"elephant of nothing":  {"microflows: {elephant: 0Mbit}", `f:1: microflows.elephant: "0Mbit" is not a rate; allowed: auto, or a rate such as 500Mbit or 3Gbit`},
		"elephant of infinity": {"microflows: {elephant: InfGbit}", `f:1: microflows.elephant: "InfGbit" is not a rate; allowed: auto, or a rate such as 500Mbit or 3Gbit`},
		"elephant of NaN":      {"microflows: {elephant: NaNGbit}", `f:1: microflows.elephant: "NaNGbit" is not a rate; allowed: auto, or a rate such as 500Mbit or 3Gbit`},
		"a rule for all":       {"priority: {rules: [{name: a}]}", `f:1: priority.rules: it fits every flow; name a proto, port, cidr, vni or dscp`},
		"a rule without name":  {"priority:\n  rules:\n  - port: 80", `f:3: priority.rules.name: missing; allowed: letters, digits, '.', '-' and '_', at most 40`},
		"rule, unknown field":  {"priority: {rules: [{name: a, prot: tcp}]}", `f:1: priority.rules.prot: a rule has no such field; allowed: name, class, proto, port, cidr, vni, dscp, network`},
		"rule, bad port":       {"priority: {rules: [{name: a, port: 0}]}", `f:1: priority.rules.port: "0" does not fit; allowed: 1 to 65535`},
		"two rules, one name":  {"priority: {rules: [{name: a, port: 1}, {name: a, port: 2}]}", `f:1: priority.rules: "a" appears twice`},
		"priority mode":        {"priority: {mode: fast}", `f:1: priority.mode: unknown value "fast"; allowed: batch, sync, off`},
		"port alone":           {"metrics: 14789", `f:1: metrics: "14789" is not an address with a port; allowed: an address with a port such as 127.0.0.1:14789, or off`},
		"name":                 {"metrics: localhost:14789", `f:1: metrics: "localhost:14789" is not an address with a port; allowed: an address with a port such as 127.0.0.1:14789, or off`},
		"a list at the top":    {"- pipeline", `f:1: expected keys and values; allowed: ` + all},
		"a word at the top":    {"off", `f:1: expected keys and values; allowed: ` + all},
		"two documents":        {"tier: tc\n---\ntier: tc", `f:3: a second document; one is allowed`},
		"alias":                {"tier: &a tc\npipeline: *a", `f:1: an anchor, an alias or a tag (&); write the value itself, or quote it`},
		"nested too deep":      {"tier: tc\npipeline: {a: [b, c: [[[{d: [[[", `f:2: more than 8 lists and mappings, one in another; no key needs more than priority: {rules: [{name: web, proto: tcp, port: 80}]}`},
		"merge key":            {"limits: {<<: {busy-cores: 3%}}", `f:1: limits: a key must be a plain word; allowed: busy-cores`},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Parse("f", []byte(tc.in))
			if err == nil || err.Error() != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
			if c != nil {
				t.Error("a configuration came back with the error")
			}
		})
	}
}

func TestSyntaxErrorIsOneLineWithPosition(t *testing.T) {
	for _, in := range []string{"a: b: c", "tier: [tc", "tier: tc\n\tpipeline: off", "tier: tc\ntier: tc", "\"", "{", "a: |\n b\n c:\n- x", "%YAML 9\n"} {
		_, err := Parse("f", []byte(in))
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%q: %v (%T) is no *Error", in, err, err)
			continue
		}
		if strings.Contains(err.Error(), "\n") || e.Line == 0 || e.File != "f" {
			t.Errorf("%q: %q, line %d", in, err, e.Line)
		}
	}
}

func TestParseBoundsTheFile(t *testing.T) {
	_, err := Parse("f", []byte(strings.Repeat("#\n", maxSize)))
	if err == nil || err.Error() != "f: larger than 512 KiB" {
		t.Error(err)
	}
}

// Of nesting and of aliases a little costs the parser gigabytes, or seconds.
func TestASmallFileTakesLittleMemory(t *testing.T) {
	const size, most = 100 << 10, 50 << 20
	for _, unit := range []string{"[", "{", "{a: ", "- ", "? ", "a: [\n", "a: {b: [", "- [", "[{}], [", "&a ", "b: *a\n", "!!seq "} {
		text := []byte(strings.Repeat(unit, size/len(unit)))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse("f", text)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > most {
			t.Errorf("%q repeated takes %d MiB: %v", unit, took>>20, err)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(good, []byte("tier: tc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(good)
	if err != nil || c.Tier != TierTC || c.Source.File != good {
		t.Errorf("%+v, %v", c, err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): ": cannot be read: no such file or directory",
		dir:                        ": cannot be read: is a directory",
	} {
		if _, err := Load(path); err == nil || err.Error() != path+want {
			t.Errorf("got %v, want %s", err, path+want)
		}
	}
}

func TestValidateNamesCoresThatAreNotThere(t *testing.T) {
	present := CPUList{0, 1}
	for in, want := range map[string]string{
		"":               "",
		"cores: 1":       "",
		"cores: 0-1":     "f:1: cores: core 0 is set apart by isolcpus or nohz_full, and the kernel sends no receive work there; possible are 1",
		"\ncores: 1,9":   "f:2: cores: core 9 is not there; there are 0-1",
		"cores: 2-3,9,1": "f:1: cores: cores 2-3,9 are not there; there are 0-1",
	} {
		c, err := Parse("f", []byte(in))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := c.Validate(present, CPUList{0}); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestProblemWithoutAFileHasNoLine(t *testing.T) {
	c := Default()
	c.Cores = CPUList{9}
	if got := c.Validate(CPUList{0}, nil).Error(); got != "cores: core 9 is not there; there are 0" {
		t.Error(got)
	}
}

// Whatever the bytes are: a configuration or one *Error on one line, never both.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "underlays: [eth0]\ncores: 2-7,9\npipeline: off\ntier: tc\nlimits: {busy-cores: 80%}\nmetrics: off\n",
		"a: &b [*b]", "? a\n: b", "{<<: *x}", "--- !!map\n", "a: |\n  b", "limits: {? }", "- - -", "tier: !!str tc",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f", data)
		if (c == nil) == (err == nil) {
			t.Fatalf("config %v with error %v", c, err)
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("%T is not *Error", err)
			}
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Fatalf("error over several lines: %q", err)
			}
			return
		}
		if c.Limits.BusyCores < 1 || c.Limits.BusyCores > 100 {
			t.Fatalf("busy-cores %d", c.Limits.BusyCores)
		}
		for _, u := range c.Underlays {
			if !netns.ValidDeviceName(u) {
				t.Fatalf("device name %q", u)
			}
		}
	})
}

func TestKeysDocumentTheSchema(t *testing.T) {
	var names []string
	for _, k := range Keys() {
		names = append(names, k.Name)
		if k.About == "" || k.Default == "" || !strings.HasPrefix(k.Allowed, "allowed: ") {
			t.Errorf("%s is documented incompletely: %+v", k.Name, k)
		}
	}
	if d := cmp.Diff([]string{"underlays", "cores", "pipeline", "microflows.mode", "microflows.batch", "microflows.cores", "microflows.elephant", "microflows.udp-order", "microflows.hold", "aggregate", "express", "bridge-netfilter", "tier", "priority.mode", "priority.classify", "priority.threads", "priority.bulk-share", "priority.rules", "limits.busy-cores", "metrics"}, names); d != "" {
		t.Error(d)
	}
}

// The file that is installed shows every key with its default, commented out.
func TestInstalledFile(t *testing.T) {
	const path = "../../deploy/config.yaml"
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Default(), c, ignoreSource); d != "" {
		t.Error(d)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "#"); ok && len(rest) > 1 && rest[0] != ' ' {
			shown = append(shown, rest)
		}
	}
	c, err = Parse(path, []byte(strings.Join(shown, "")))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if c.Source.Lines[k.Name] == 0 {
			t.Errorf("%s is not shown", k.Name)
		}
	}
	c.Underlays, c.Cores = nil, nil // have no default that could be written
	if d := cmp.Diff(Default(), c, ignoreSource); d != "" {
		t.Error(d)
	}
}
