// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/rules"
)

// Changes are what was changed on the node since the log was last written: programs on devices, settings and
// rules. What the daemon does alike to many devices in one turn is one line, which counts them and names the
// first: with 200 pods, 200 lines would hide all others.
type Changes struct {
	log  *slog.Logger
	home uint64

	mu       sync.Mutex
	order    []change
	where    map[change][]string
	programs map[uint32]string
	kept     map[plan.Setting]string // why it was not restored, as the log says
}

// change is what was done, without where.
type change struct {
	msg string
	// attrs are keys and values, each ended by a zero byte: a change is compared.
	attrs string
	noun  string // of what it was done to
}

// named is how many of those that something was done to are named in a line.
const named = 3

func NewChanges(log *slog.Logger, home uint64) *Changes {
	return &Changes{log: log, home: home, where: map[change][]string{}, programs: map[uint32]string{}, kept: map[plan.Setting]string{}}
}

// InOrder is a log whose lines come behind those of all changes that were noted before.
func (c *Changes) InOrder() *slog.Logger {
	return slog.New(handler{c.log.Handler(), func(ctx context.Context, to slog.Handler, r slog.Record) error {
		c.Flush()
		return to.Handle(ctx, r)
	}})
}

// handler is a slog.Handler each record of which goes through a function.
type handler struct {
	slog.Handler
	handle func(ctx context.Context, to slog.Handler, r slog.Record) error
}

func (h handler) Handle(ctx context.Context, r slog.Record) error { return h.handle(ctx, h.Handler, r) }

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.handle}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.handle}
}

// add notes a change; attrs are keys and values.
func (c *Changes) add(msg, noun, where string, attrs ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := change{msg, strings.Join(attrs, "\x00"), noun}
	if c.where[k] == nil {
		c.order = append(c.order, k)
	}
	c.where[k] = append(c.where[k], where)
}

// Flush writes what there is, a line for each kind of change.
func (c *Changes) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.order {
		var args []any
		parts := strings.Split(k.attrs, "\x00")
		for i := 0; i+1 < len(parts); i += 2 {
			args = append(args, slog.String(parts[i], parts[i+1]))
		}
		where := c.where[k]
		if len(where) == 1 {
			args = append(args, slog.String(k.noun, where[0]))
		} else {
			args = append(args, slog.Int("count", len(where)), slog.String(k.noun+"s", strings.Join(where[:min(named, len(where))], ", ")))
		}
		c.log.Info(k.msg, args...)
	}
	c.order = nil
	clear(c.where)
}

// device is what the log calls a device.
func (c *Changes) device(name string, cookie uint64) string {
	if cookie == c.home {
		return name
	}
	return name + " (network namespace " + strconv.FormatUint(cookie, 10) + ")"
}

// setting notes what became of one: what apply.Locked tells.
func (c *Changes) setting(r apply.Result) {
	what, noun, where := r.Attr, "device", c.device(r.Name, r.NetnsCookie)
	switch {
	case r.Kind == plan.ThreadSched:
		what, noun, where = "scheduling", "thread", r.Setting.String()
		if id, err := plan.ParseThread(r.Attr); err == nil {
			where = id.Comm + " (pid " + strconv.Itoa(id.PID) + ")"
		}
	case r.Ifindex == 0:
		noun, where = "netns", strconv.FormatUint(r.NetnsCookie, 10)
	}
	newly := c.keeps(r)
	switch r.Outcome {
	case apply.Applied:
		c.add("setting written", noun, where, "setting", what, "from", r.From, "to", r.To)
	case apply.Restored:
		c.add("setting restored", noun, where, "setting", what, "from", r.From, "to", r.To)
	case apply.LeftAlone:
		c.add("setting left alone", noun, where, "setting", what, "value", r.To, "reason", r.Reason)
	case apply.Kept:
		if !newly {
			return // it is tried again and again
		}
		c.log.Warn("setting not restored", "setting", what, noun, where, "reason", r.Reason)
	default:
		c.log.Debug("setting", "result", r.String())
	}
}

// keeps notes why a setting was not restored, if so, and tells whether that is new.
func (c *Changes) keeps(r apply.Result) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.kept[r.Setting]
	if r.Outcome != apply.Kept {
		delete(c.kept, r.Setting)
		return false
	}
	c.kept[r.Setting] = r.Reason
	return was != r.Reason
}

// Rules notes which rules of a mechanism have been added, and which were taken away.
func (c *Changes) Rules(by plan.Owner, was, now []rules.Rule) {
	note := func(msg string, of, but []rules.Rule) {
		for _, r := range of {
			if !slices.ContainsFunc(but, func(o rules.Rule) bool { return o.Name == r.Name }) {
				c.add(msg, "rule", r.Name, "mechanism", string(by), "class", string(r.Class))
			}
		}
	}
	note("rule added", now, was)
	note("rule taken away", was, now)
}

// attached notes that a program of ours was attached to a device, and notes its end when what it returns is
// closed.
func (c *Changes) attached(dev node.Dev, l io.Closer) io.Closer {
	program, hook, ok := c.program(l)
	if !ok || hook == "XDP" { // that one is told of by xdp.Places, with what it costs
		return l
	}
	at := c.device(dev.Name, dev.NetnsCookie)
	c.add("program attached", "device", at, "program", program, "hook", hook)
	return closer(func() error {
		err := l.Close()
		if err == nil {
			c.add("program detached", "device", at, "program", program, "hook", hook)
		}
		return err
	})
}

type closer func() error

func (c closer) Close() error { return c() }

// program asks the kernel what a link attaches, and to which hook; not ok: it is none.
func (c *Changes) program(l io.Closer) (name, hook string, ok bool) {
	k, ok := l.(interface{ Info() (*link.Info, error) })
	if !ok {
		return "", "", false
	}
	info, err := k.Info()
	if err != nil {
		return "unknown", "unknown", true
	}
	id := uint32(info.Program)
	c.mu.Lock()
	defer c.mu.Unlock()
	name, known := c.programs[id]
	if !known {
		name = foreign.ProgramName(id)
		c.programs[id] = name
	}
	switch tcx := info.TCX(); {
	case tcx == nil:
		return name, "XDP", true
	case ebpf.AttachType(tcx.AttachType) == ebpf.AttachTCXIngress:
		return name, "tcx ingress", true
	}
	return name, "tcx egress", true
}

// onlyGone tells that an error says no more than that a device, or its namespace, is gone.
func onlyGone(err error) bool {
	switch e := err.(type) {
	case nil:
		return false
	case interface{ Unwrap() []error }:
		all := e.Unwrap()
		if slices.Contains(all, node.ErrGone) {
			return true // the others say how that was seen
		}
		return len(all) > 0 && !slices.ContainsFunc(all, func(err error) bool { return !onlyGone(err) })
	}
	return err == node.ErrGone || onlyGone(errors.Unwrap(err))
}

// WithoutGone is a log in which nothing is a warning for the reason that a device or a namespace is gone:
// pods and networks come and go, and are scanned again.
func WithoutGone(to slog.Handler) slog.Handler { return handler{to, handleGone} }

func handleGone(ctx context.Context, to slog.Handler, r slog.Record) error {
	if r.Level > slog.LevelInfo {
		r.Attrs(func(a slog.Attr) bool {
			if err, ok := a.Value.Any().(error); ok && onlyGone(err) {
				r.Level = slog.LevelDebug
			}
			return true
		})
	}
	if !to.Enabled(ctx, r.Level) {
		return nil
	}
	return to.Handle(ctx, r)
}
