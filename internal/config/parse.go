// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/rules"
)

// keys is the schema: every key a mapping may have, in the order of the
// documentation, and what reads its value.
type keys []key

type key struct {
	name    string
	about   string
	allowed string
	def     string
	read    func(d *decoder, path string, n ast.Node) error
	below   keys // of a mapping
}

var schema = keys{
	{
		name: "underlays", about: "the NICs on which overlane works",
		allowed: allowedUnderlays, def: "every NIC that carries a tunnel's outer packets",
		read: (*decoder).underlays,
	},
	{
		name: "cores", about: "the cores to which overlane may send receive work",
		allowed: allowedCores, def: "online cores that are not isolated",
		read: (*decoder).cores,
	},
	{
		name: "pipeline", about: "spread the work of a flow over cores; auto: when it pays, forced: always, for measurements",
		allowed: allow(ModeAuto, ModeOff, ModeForced), def: string(Default().Pipeline),
		read: func(d *decoder, path string, n ast.Node) error {
			return word(d, path, n, &d.cfg.Pipeline, ModeAuto, ModeOff, ModeForced)
		},
	},
	{
		name: "microflows", about: "spread the packets of one flow over cores, if it is too much for one",
		below: microflowKeys,
	},
	{
		name: "aggregate", about: "have UDP datagrams of one flow that come in a row cross the overlay as one packet; auto: when they do, forced: always, for measurements",
		allowed: allow(ModeAuto, ModeOff, ModeForced), def: string(Default().Aggregate),
		read: func(d *decoder, path string, n ast.Node) error {
			return word(d, path, n, &d.cfg.Aggregate, ModeAuto, ModeOff, ModeForced)
		},
	},
	{
		name: "express", about: "hand UDP frames from the NIC straight to the pod, where no rule or program on the way could touch them",
		allowed: allow(ModeOff, ModeAuto), def: string(Default().Express),
		read: func(d *decoder, path string, n ast.Node) error {
			return word(d, path, n, &d.cfg.Express, ModeOff, ModeAuto)
		},
	},
	{
		name: "bridge-netfilter", about: "whether bridges call netfilter for each packet; skip-unused: not while netfilter has no rule and no program",
		allowed: allow(HooksKept, HooksUnused), def: string(Default().BridgeNetfilter),
		read: func(d *decoder, path string, n ast.Node) error {
			return word(d, path, n, &d.cfg.BridgeNetfilter, HooksKept, HooksUnused)
		},
	},
	{
		name: "tier", about: "where the pipeline steers; tc: behind the NIC, xdp: in the NIC's driver, an error where that is impossible",
		allowed: allow(TierAuto, TierTC, TierXDP), def: string(Default().Tier),
		read: func(d *decoder, path string, n ast.Node) error {
			return word(d, path, n, &d.cfg.Tier, TierAuto, TierTC, TierXDP)
		},
	},
	{
		name: "priority", about: "let flows that need low latency overtake bulk",
		below: keys{
			{
				name: "mode", about: "how latency flows get ahead; batch: bulk waits in a lane, sync: straight from tunnel to pod as well, off: they do not",
				allowed: allow(PriorityBatch, PrioritySync, PriorityOff), def: string(Default().Priority.Mode),
				read: func(d *decoder, path string, n ast.Node) error {
					return word(d, path, n, &d.cfg.Priority.Mode, PriorityBatch, PrioritySync, PriorityOff)
				},
			},
			{
				name: "classify", about: "which flows are latency; rules: those that rules name, auto: small, sparse flows, too, proven: these only without rules and after a trial has shown that it pays",
				allowed: allow(ClassifyRules, ClassifyAuto, ClassifyProven), def: string(Default().Priority.Classify),
				read: func(d *decoder, path string, n ast.Node) error {
					return word(d, path, n, &d.cfg.Priority.Classify, ClassifyRules, ClassifyAuto, ClassifyProven)
				},
			},
			{
				name: "threads", about: "how NICs are polled beside priority; auto: by threads in real time, fair: by threads of the fair scheduler, off: in softirq, as before",
				allowed: allow(ThreadsAuto, ThreadsFair, ThreadsOff), def: string(Default().Priority.Threads),
				read: func(d *decoder, path string, n ast.Node) error {
					return word(d, path, n, &d.cfg.Priority.Threads, ThreadsAuto, ThreadsFair, ThreadsOff)
				},
			},
			{
				name: "bulk-share", about: "the share of a core's time that latency flows leave to bulk",
				allowed: allowedPercent, def: fmt.Sprintf("%d%%", Default().Priority.BulkShare),
				read: func(d *decoder, path string, n ast.Node) error {
					return d.percent(path, n, &d.cfg.Priority.BulkShare)
				},
			},
			{
				name: "rules", about: "rules that give flows a class; the first that fits decides",
				allowed: allowedRules, def: "none",
				read: (*decoder).rules,
			},
		},
	},
	{
		name: "limits", about: "when to step back",
		below: keys{
			{
				name: "busy-cores", about: "overlane steps back when the cores are busier than this on average, as in limits: {busy-cores: 70%}",
				allowed: allowedPercent, def: fmt.Sprintf("%d%%", Default().Limits.BusyCores),
				read: func(d *decoder, path string, n ast.Node) error {
					return d.percent(path, n, &d.cfg.Limits.BusyCores)
				},
			},
		},
	},
	{
		name: "metrics", about: "the address at which Prometheus may read metrics",
		allowed: allowedMetrics, def: Default().Metrics,
		read: (*decoder).metrics,
	},
}

// Key documents one key of the file.
type Key struct {
	Name    string // "cores", "limits.busy-cores"
	About   string
	Allowed string // "allowed: auto, off"
	Default string
}

// Keys documents every key that has a value of its own, in order.
func Keys() []Key { return schema.document("") }

func (k keys) document(prefix string) []Key {
	var list []Key
	for _, key := range k {
		if key.below != nil {
			list = append(list, key.below.document(prefix+key.name+".")...)
			continue
		}
		list = append(list, Key{prefix + key.name, key.about, key.allowed, key.def})
	}
	return list
}

// Parse reads a configuration from memory. name stands for the file in errors.
// The error is an *Error.
func Parse(name string, data []byte) (*Config, error) {
	if len(data) > maxSize {
		return nil, &Error{File: name, Problem: fmt.Sprintf("larger than %d KiB", maxSize>>10)}
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, syntaxError(name, err)
	}
	d := &decoder{cfg: Default()}
	d.cfg.Source = Source{File: name, Lines: map[string]int{}}

	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if body != nil {
			return nil, d.fail(doc.Body, "", "a second document", "one is allowed")
		}
		body = doc.Body
	}
	if body == nil {
		return d.cfg, nil
	}
	if err := d.mapping("", body, schema); err != nil {
		return nil, err
	}
	return d.cfg, nil
}

// syntaxError keeps the parser's line and drops the source excerpt that it
// prints over several lines.
func syntaxError(name string, err error) *Error {
	e := &Error{File: name, Problem: "not YAML"}
	var ye yaml.Error
	if errors.As(err, &ye) {
		e.Problem = "not YAML: " + ye.GetMessage()
		if t := ye.GetToken(); t != nil && t.Position != nil {
			e.Line = t.Position.Line
		}
	}
	return e
}

type decoder struct {
	cfg *Config
}

func (d *decoder) fail(n ast.Node, path, problem, allowed string) *Error {
	return &Error{File: d.cfg.Source.File, Line: line(n), Key: path, Problem: problem, Allowed: allowed}
}

func line(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}

func (d *decoder) mapping(path string, n ast.Node, allowed keys) error {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		return d.fail(n, path, "expected keys and values", allowed.list())
	}
	for _, v := range values {
		name, ok := scalar(v.Key)
		if !ok {
			return d.fail(v.Key, path, "a key must be a plain word", allowed.list())
		}
		i := slices.IndexFunc(allowed, func(k key) bool { return k.name == name })
		if i < 0 {
			return d.fail(v.Key, path, fmt.Sprintf("unknown key %q", name), allowed.list())
		}
		full := name
		if path != "" {
			full = path + "." + name
		}
		if v.Value == nil || v.Value.Type() == ast.NullType {
			return d.fail(v.Key, full, "has no value", "leave the key out for the default")
		}
		if _, twice := d.cfg.Source.Lines[full]; twice {
			return d.fail(v.Key, full, "appears twice", "")
		}
		var err error
		if below := allowed[i].below; below != nil {
			err = d.mapping(full, v.Value, below)
		} else {
			err = allowed[i].read(d, full, v.Value)
		}
		if err != nil {
			return err
		}
		d.cfg.Source.Lines[full] = line(v.Key)
	}
	return nil
}

func (k keys) list() string {
	names := make([]string, len(k))
	for i := range k {
		names[i] = k[i].name
	}
	return "allowed: " + strings.Join(names, ", ")
}

// scalar returns the text as written, before YAML guesses a type: "off" stays
// a word and 010 a core list. Anchors, aliases and tags are not scalars here;
// a small file needs none of them.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

func (d *decoder) text(path string, n ast.Node, allowed string) (string, error) {
	s, ok := scalar(n)
	if !ok {
		return "", d.fail(n, path, "expected one plain value", allowed)
	}
	return s, nil
}

// allow spells a set of words.
func allow[T ~string](words ...T) string {
	names := make([]string, len(words))
	for i := range words {
		names[i] = string(words[i])
	}
	return "allowed: " + strings.Join(names, ", ")
}

// What values look like, for errors and for the documentation.
const (
	allowedUnderlays = "allowed: a list of device names such as [eth0, eth1]"
	allowedCores     = "allowed: a core list such as 2-7,9"
	allowedPercent   = "allowed: 1% to 100%"
	allowedRules     = "allowed: a list such as [{name: web, proto: tcp, port: 80}]"
	allowedMetrics   = "allowed: an address with a port such as 127.0.0.1:14789, or off"
)

// word reads one of a fixed set of words.
func word[T ~string](d *decoder, path string, n ast.Node, dst *T, allowed ...T) error {
	list := allow(allowed...)
	s, err := d.text(path, n, list)
	if err != nil {
		return err
	}
	if !slices.Contains(allowed, T(s)) {
		return d.fail(n, path, fmt.Sprintf("unknown value %q", s), list)
	}
	*dst = T(s)
	return nil
}

func (d *decoder) percent(path string, n ast.Node, dst *int) error {
	const allowed = allowedPercent
	s, err := d.text(path, n, allowed)
	if err != nil {
		return err
	}
	digits, ok := strings.CutSuffix(s, "%")
	v, err := strconv.ParseUint(digits, 10, 8)
	if !ok || err != nil || v < 1 || v > 100 {
		return d.fail(n, path, fmt.Sprintf("%q is not a percentage", s), allowed)
	}
	*dst = int(v)
	return nil
}

func (d *decoder) cores(path string, n ast.Node) error {
	const allowed = allowedCores
	s, err := d.text(path, n, allowed)
	if err != nil {
		return err
	}
	list, err := ParseCPUList(s)
	if err != nil {
		return d.fail(n, path, err.Error(), allowed)
	}
	if len(list) == 0 {
		return d.fail(n, path, "names no core", allowed)
	}
	d.cfg.Cores = list
	return nil
}

func (d *decoder) underlays(path string, n ast.Node) error {
	const allowed = allowedUnderlays
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return d.fail(n, path, "expected a list", allowed)
	}
	if len(seq.Values) == 0 {
		return d.fail(n, path, "names no device", "leave the key out for every device that carries a tunnel")
	}
	for _, v := range seq.Values {
		name, err := d.text(path, v, allowed)
		if err != nil {
			return err
		}
		if !netns.ValidDeviceName(name) {
			return d.fail(v, path, fmt.Sprintf("%q cannot be a device name", name), allowed)
		}
		if slices.Contains(d.cfg.Underlays, name) {
			return d.fail(v, path, fmt.Sprintf("%q appears twice", name), "")
		}
		d.cfg.Underlays = append(d.cfg.Underlays, name)
	}
	return nil
}

// rules reads the list of priority rules. Each is a mapping of its own.
func (d *decoder) rules(path string, n ast.Node) error {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return d.fail(n, path, "expected a list", allowedRules)
	}
	for _, v := range seq.Values {
		r, err := d.rule(path, v)
		if err != nil {
			return err
		}
		same := func(o rules.Rule) bool { return o.Name == r.Name }
		if slices.ContainsFunc(d.cfg.Priority.Rules, same) {
			return d.fail(v, path, fmt.Sprintf("%q appears twice", r.Name), "")
		}
		d.cfg.Priority.Rules = append(d.cfg.Priority.Rules, r)
	}
	if _, err := rules.Compile(d.cfg.Priority.Rules); err != nil {
		return d.fail(n, path, err.Error(), "")
	}
	return nil
}

func (d *decoder) rule(path string, n ast.Node) (r rules.Rule, err error) {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		return r, d.fail(n, path, "expected keys and values", allowedRules)
	}
	seen := map[string]bool{}
	for _, v := range values {
		name, ok := scalar(v.Key)
		if !ok {
			return r, d.fail(v.Key, path, "a key must be a plain word", allowedRules)
		}
		if seen[name] {
			return r, d.fail(v.Key, path+"."+name, "appears twice", "")
		}
		seen[name] = true
		value, err := d.text(path+"."+name, v.Value, "")
		if err != nil {
			return r, err
		}
		if err := r.Set(name, value); err != nil {
			return r, d.ruleError(v.Key, path, err)
		}
	}
	if err := r.Finish(); err != nil {
		return r, d.ruleError(n, path, err)
	}
	return r, nil
}

func (d *decoder) ruleError(n ast.Node, path string, err error) error {
	var fe *rules.FieldError
	if !errors.As(err, &fe) {
		return d.fail(n, path, err.Error(), "")
	}
	allowed := fe.Allowed
	if allowed != "" {
		allowed = "allowed: " + allowed
	}
	return d.fail(n, path+"."+fe.Field, fe.Problem, allowed)
}

func (d *decoder) metrics(path string, n ast.Node) error {
	const allowed = allowedMetrics
	s, err := d.text(path, n, allowed)
	if err != nil {
		return err
	}
	if s == "off" {
		d.cfg.Metrics = ""
		return nil
	}
	// Names are refused: what a name resolves to may change, and with it who
	// can read the metrics.
	if _, err := netip.ParseAddrPort(s); err != nil {
		return d.fail(n, path, fmt.Sprintf("%q is not an address with a port", s), allowed)
	}
	d.cfg.Metrics = s
	return nil
}
