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
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/rules"
)

// schema is every key a mapping may have, in the order of the documentation, and what reads its value.
type schema []Key

// Key is a key of the file.
type Key struct {
	Name    string // "cores"; in what Keys returns, "limits.busy-cores"
	About   string
	Allowed string // "allowed: auto, off"
	Default string

	// set takes a plain value, or says what is wrong with it; read takes any other.
	set   func(c *Config, value string) (problem string)
	read  func(d *decoder, path string, n ast.Node) error
	below schema // of a mapping
}

var keys = schema{
	{
		Name: "underlays", About: "the NICs on which overlane works; a change needs a restart",
		Allowed: allowedUnderlays, Default: "every NIC that carries a tunnel's outer packets",
		read: (*decoder).underlays,
	},
	{
		Name: "cores", About: "the cores to which overlane may send receive work while they are online",
		Allowed: "allowed: a core list such as 2-7,9", Default: "cores that are not isolated",
		set: setCores,
	},
	word("pipeline", "spread the work of a flow over cores; auto: when it pays, forced: always, for measurements",
		func(c *Config) *Mode { return &c.Pipeline }, ModeAuto, ModeOff, ModeForced),
	{
		Name: "microflows", About: "spread the packets of one flow over cores, if it is too much for one",
		below: microflowKeys,
	},
	word("aggregate", "have UDP datagrams of one flow that come in a row cross the overlay as one packet; auto: when they do, forced: always, for measurements",
		func(c *Config) *Mode { return &c.Aggregate }, ModeAuto, ModeOff, ModeForced),
	word("express", "hand UDP frames from the NIC straight to the pod, where no rule or program on the way could touch them; auto: as far as a trial shows that it pays",
		func(c *Config) *Mode { return &c.Express }, ModeOff, ModeAuto, ModeForced),
	word("bridge-netfilter", "whether bridges call netfilter for each packet; skip-unused: not while netfilter has no rule and no program",
		func(c *Config) *BridgeNetfilter { return &c.BridgeNetfilter }, HooksKept, HooksUnused),
	word("tier", "where the pipeline steers; tc: behind the NIC, xdp: in the NIC's driver, an error where that is impossible, auto: as tc, and micro-flows may use XDP; a change needs a restart",
		func(c *Config) *Tier { return &c.Tier }, TierAuto, TierTC, TierXDP),
	{
		Name: "priority", About: "let flows that need low latency overtake bulk",
		below: schema{
			word("mode", "how latency flows get ahead; batch: bulk waits in a lane, sync: straight from tunnel to pod as well, off: they do not",
				func(c *Config) *PriorityMode { return &c.Priority.Mode }, PriorityBatch, PrioritySync, PriorityOff),
			word("classify", "which flows are latency; rules: those that rules name, auto: small, sparse flows, too, proven: these only without rules and after a trial has shown that it pays",
				func(c *Config) *Classify { return &c.Priority.Classify }, ClassifyRules, ClassifyAuto, ClassifyProven),
			word("threads", "how NICs are polled beside priority; auto: by threads in real time, fair: by threads of the fair scheduler, off: in softirq, as before",
				func(c *Config) *Threads { return &c.Priority.Threads }, ThreadsAuto, ThreadsFair, ThreadsOff),
			percent("bulk-share", "the share of a core's time that latency flows leave to bulk",
				func(c *Config) *int { return &c.Priority.BulkShare }),
			{
				Name: "rules", About: "rules that give flows a class; the first that fits decides",
				Allowed: allowedRules, Default: "none",
				read: (*decoder).rules,
			},
		},
	},
	{
		Name: "limits", About: "when to step back",
		below: schema{
			percent("busy-cores", "overlane steps back when the cores are busier than this on average, as in limits: {busy-cores: 70%}",
				func(c *Config) *int { return &c.Limits.BusyCores }),
		},
	},
	{
		Name: "metrics", About: "the address at which Prometheus may read metrics",
		Allowed: "allowed: an address with a port such as 127.0.0.1:14789, or off", Default: Default().Metrics,
		set: setMetrics,
	},
}

// Keys documents every key that has a value of its own, in order.
func Keys() []Key { return keys.document("") }

func (s schema) document(prefix string) []Key {
	var list []Key
	for _, key := range s {
		key.Name = prefix + key.Name
		if key.below != nil {
			list = append(list, key.below.document(key.Name+".")...)
			continue
		}
		list = append(list, key)
	}
	return list
}

// Parse reads a configuration from memory. name stands for the file in errors.
// The error is an *Error.
func Parse(name string, data []byte) (*Config, error) {
	if len(data) > maxSize {
		return nil, &Error{File: name, Problem: fmt.Sprintf("larger than %d KiB", maxSize>>10)}
	}
	tokens := lexer.Tokenize(string(data))
	if refused := dear(tokens); refused != nil {
		refused.File = name
		return nil, refused
	}
	file, err := parser.Parse(tokens, 0)
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
	if err := d.mapping("", body, keys); err != nil {
		return nil, err
	}
	return d.cfg, nil
}

// dear finds what no configuration needs, and of which a little costs the parser much: nesting deeper than maxDepth by
// brackets, or on one line, and aliases. Nesting by indentation the size of the file bounds.
func dear(tokens token.Tokens) *Error {
	open, entries, of := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.AnchorType, token.AliasType, token.TagType:
			return &Error{Line: line(t), Problem: fmt.Sprintf("an anchor, an alias or a tag (%s)", t.Value), Allowed: "write the value itself, or quote it"}
		case token.MappingStartType, token.SequenceStartType:
			open++
		case token.MappingEndType, token.SequenceEndType:
			open = max(open-1, 0)
		case token.SequenceEntryType, token.MappingKeyType:
			if line(t) != of {
				entries, of = 0, line(t)
			}
			entries++
		}
		if open+entries > maxDepth {
			return &Error{Line: line(t), Problem: fmt.Sprintf("more than %d lists and mappings, one in another", maxDepth),
				Allowed: "no key needs more than priority: {rules: [{name: web, proto: tcp, port: 80}]}"}
		}
	}
	return nil
}

// syntaxError keeps the parser's line and drops the source excerpt that it
// prints over several lines.
func syntaxError(name string, err error) *Error {
	e := &Error{File: name, Problem: "not YAML"}
	var ye yaml.Error
	if errors.As(err, &ye) {
		e.Problem = "not YAML: " + ye.GetMessage()
		e.Line = line(ye.GetToken())
	}
	return e
}

type decoder struct{ cfg *Config }

func (d *decoder) fail(n ast.Node, path, problem, allowed string) *Error {
	return &Error{File: d.cfg.Source.File, Line: line(n.GetToken()), Key: path, Problem: problem, Allowed: allowed}
}

func line(t *token.Token) int {
	if t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}

// entries calls fn with each key of a mapping, and with its value.
func (d *decoder) entries(path string, n ast.Node, allowed string, fn func(name string, v *ast.MappingValueNode) error) error {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		return d.fail(n, path, "expected keys and values", allowed)
	}
	for _, v := range values {
		name, ok := scalar(v.Key)
		if !ok {
			return d.fail(v.Key, path, "a key must be a plain word", allowed)
		}
		if err := fn(name, v); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) mapping(path string, n ast.Node, allowed schema) error {
	return d.entries(path, n, allowed.list(), func(name string, v *ast.MappingValueNode) error {
		i := slices.IndexFunc(allowed, func(k Key) bool { return k.Name == name })
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
		if err := d.value(full, v.Value, allowed[i]); err != nil {
			return err
		}
		d.cfg.Source.Lines[full] = line(v.Key.GetToken())
		return nil
	})
}

func (d *decoder) value(path string, n ast.Node, key Key) error {
	switch {
	case key.below != nil:
		return d.mapping(path, n, key.below)
	case key.read != nil:
		return key.read(d, path, n)
	}
	value, err := d.text(path, n, key.Allowed)
	if err != nil {
		return err
	}
	if problem := key.set(d.cfg, value); problem != "" {
		return d.fail(n, path, problem, key.Allowed)
	}
	return nil
}

func (s schema) list() string {
	var names []string
	for _, key := range s {
		names = append(names, key.Name)
	}
	return "allowed: " + strings.Join(names, ", ")
}

// scalar returns the text as written, before YAML guesses a type: "off" stays
// a word and 010 a core list.
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

// What lists look like, for errors and for the documentation.
const (
	allowedUnderlays = "allowed: a list of device names such as [eth0, eth1]"
	allowedRules     = "allowed: a list such as [{name: web, proto: tcp, port: 80}]"
)

// word is a key whose value is one of a fixed set of words.
func word[T ~string](name, about string, of func(*Config) *T, allowed ...T) Key {
	var list []string
	for _, w := range allowed {
		list = append(list, string(w))
	}
	return Key{
		Name: name, About: about, Allowed: "allowed: " + strings.Join(list, ", "), Default: string(*of(Default())),
		set: func(c *Config, value string) string {
			if !slices.Contains(list, value) {
				return fmt.Sprintf("unknown value %q", value)
			}
			*of(c) = T(value)
			return ""
		},
	}
}

func percent(name, about string, of func(*Config) *int) Key {
	return Key{
		Name: name, About: about, Allowed: "allowed: 1% to 100%", Default: fmt.Sprintf("%d%%", *of(Default())),
		set: func(c *Config, value string) string {
			digits, ok := strings.CutSuffix(value, "%")
			v, err := strconv.ParseUint(digits, 10, 8)
			if !ok || err != nil || v < 1 || v > 100 {
				return fmt.Sprintf("%q is not a percentage", value)
			}
			*of(c) = int(v)
			return ""
		},
	}
}

func setCores(c *Config, value string) string {
	list, err := ParseCPUList(value)
	if err != nil {
		return err.Error()
	}
	if len(list) == 0 {
		return "names no core"
	}
	c.Cores = list
	return ""
}

func setMetrics(c *Config, value string) string {
	if value == "off" {
		c.Metrics = ""
		return ""
	}
	// Names are refused: what a name resolves to may change, and with it which
	// hosts can read the metrics.
	if _, err := netip.ParseAddrPort(value); err != nil {
		return fmt.Sprintf("%q is not an address with a port", value)
	}
	c.Metrics = value
	return ""
}

func (d *decoder) underlays(path string, n ast.Node) error {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return d.fail(n, path, "expected a list", allowedUnderlays)
	}
	if len(seq.Values) == 0 {
		return d.fail(n, path, "names no device", "leave the key out for every device that carries a tunnel")
	}
	for _, v := range seq.Values {
		name, err := d.text(path, v, allowedUnderlays)
		if err != nil {
			return err
		}
		if !netns.ValidDeviceName(name) {
			return d.fail(v, path, fmt.Sprintf("%q cannot be a device name", name), allowedUnderlays)
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
	seen := map[string]bool{}
	err = d.entries(path, n, allowedRules, func(name string, v *ast.MappingValueNode) error {
		if seen[name] {
			return d.fail(v.Key, path+"."+name, "appears twice", "")
		}
		seen[name] = true
		value, err := d.text(path+"."+name, v.Value, "")
		if err != nil {
			return err
		}
		if err := r.Set(name, value); err != nil {
			return d.ruleError(v.Key, path, err)
		}
		return nil
	})
	if err != nil {
		return r, err
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
