// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/rules"
)

// logTo is a log without times.
func logTo(b *bytes.Buffer, level slog.Level) *slog.Logger {
	return slog.New(WithoutGone(slog.NewTextHandler(b, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})))
}

func TestWhatIsDoneToManyIsOneLine(t *testing.T) {
	var b bytes.Buffer
	c := NewChanges(logTo(&b, slog.LevelInfo), 1)
	mask := func(cookie uint64, name string) plan.Setting {
		return plan.RPSMask(plan.Target{NetnsCookie: cookie, Ifindex: 2, Name: name}, 0)
	}
	for i := range uint64(200) {
		c.setting(apply.Result{Setting: mask(100+i, "eth0"), Outcome: apply.Applied, From: "0", To: "2"})
	}
	c.setting(apply.Result{Setting: mask(1, "vx0"), Outcome: apply.Restored, From: "2", To: "0"})
	c.setting(apply.Result{Setting: mask(1, "vx1"), Outcome: apply.Gone, Reason: "gone"})
	for range 3 {
		c.setting(apply.Result{Setting: mask(1, "vx2"), Outcome: apply.Kept, Reason: "no"})
	}
	c.Rules(plan.ByPriority, nil, []rules.Rule{{Name: "dns", Class: rules.Latency}})
	c.Rules(plan.ByPriority, []rules.Rule{{Name: "dns", Class: rules.Latency}}, nil)
	c.Flush()
	c.Flush()
	const want = `level=WARN msg="setting not restored" setting=queues/rx-0/rps_cpus device=vx2 reason=no
level=INFO msg="setting written" setting=queues/rx-0/rps_cpus from=0 to=2 count=200 devices="eth0 (network namespace 100), eth0 (network namespace 101), eth0 (network namespace 102)"
level=INFO msg="setting restored" setting=queues/rx-0/rps_cpus from=2 to=0 device=vx0
level=INFO msg="rule added" mechanism=priority class=latency rule=dns
level=INFO msg="rule taken away" mechanism=priority class=latency rule=dns
`
	if b.String() != want {
		t.Errorf("the log has\n%s\nwant\n%s", b.String(), want)
	}
}

func TestWhatIsGoneIsNoWarning(t *testing.T) {
	gone := fmt.Errorf("network namespace 7: %w (%w)", node.ErrGone, unix.ENOENT)
	for _, tc := range []struct {
		err  error
		only bool
	}{
		{gone, true},
		{errors.Join(gone, fmt.Errorf("scan: %w", gone)), true},
		{errors.Join(node.ErrGone, unix.ENODEV), true},
		{errors.Join(gone, unix.EPERM), false},
		{fmt.Errorf("write: %w", unix.EPERM), false},
		{errors.New("gone"), false},
	} {
		var b bytes.Buffer
		logTo(&b, slog.LevelInfo).With("a", 1).Warn("some devices could not be followed", "reason", tc.err)
		if said := b.Len() > 0; said == tc.only || onlyGone(tc.err) != tc.only {
			t.Errorf("%v: logged %t, %q", tc.err, said, b.String())
		}
	}
}
