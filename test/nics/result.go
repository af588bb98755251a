// SPDX-License-Identifier: Apache-2.0

package nics

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Row is what became of one mechanism on one NIC.
type Row struct {
	NIC       string
	Driver    string
	Kernel    string
	Mechanism string
	// Acts tells that counters show it; State and Reason are what status says of it.
	Acts          bool
	State, Reason string
	// Exit is the status of a daemon that ended by itself, with what it said last.
	Exit int
	Said string `json:",omitempty"`

	// Before anything of the daemon is there, from its start until two seconds after it acts, and
	// from when it is told to end until two seconds after it has ended.
	Before, Attach, Detach Phase
	// Expired counts packets of split flows that did not wait any longer for those before them.
	Expired uint64
	// Load is what came of the load meanwhile.
	Load Count
	// Carrier is how often the carrier of a NIC changed.
	Carrier int
	// Left is what differs from before, kernel threads among it.
	Left []string
}

// Phase is the stream in both directions: to the machine, and from it.
type Phase struct {
	In, Out Count
	// Stall is for how long the machine itself stood still at most, as its sender saw it: that much
	// of a pause is the emulator's, or a core's that has other work.
	Stall time.Duration
}

// Mark begins the line of a row in the output of the machine.
const Mark = "ROW "

// Late is how many datagrams came behind later ones while the daemon was there.
func (r Row) Late() (n uint64) {
	for _, p := range []Phase{r.Attach, r.Detach} {
		n += p.In.Late + p.Out.Late
	}
	return n + r.Load.Late
}

// Table is rows as Markdown, by NIC. Of each phase it tells the longest pause of the stream to the
// machine, of the one from it, and for how long the machine stood still by itself, in ms.
func Table(rows []Row) string {
	var b strings.Builder
	var done []string
	for _, first := range rows {
		if slices.Contains(done, first.NIC) {
			continue
		}
		done = append(done, first.NIC)
		fmt.Fprintf(&b, "### %s\n\n| mechanism | Linux | acts | before | attach | detach | late | carrier changes | restored |\n|---|---|---|---|---|---|---|---|---|\n", first.NIC)
		for _, r := range rows {
			if r.NIC == first.NIC {
				r.write(&b)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (r Row) write(b *strings.Builder) {
	kernel, _, _ := strings.Cut(r.Kernel, "+")
	restored := "yes"
	if len(r.Left) > 0 {
		restored = fmt.Sprintf("no, %d differences", len(r.Left))
	}
	fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %d | %d | %s |\n", r.Mechanism, kernel, strings.ReplaceAll(r.acts(), "|", "\\|"),
		r.Before.pauses(), r.Attach.pauses(), r.Detach.pauses(), r.Late(), r.Carrier, restored)
}

func (p Phase) pauses() string {
	ms := func(d time.Duration) int64 { return d.Round(time.Millisecond).Milliseconds() }
	return fmt.Sprintf("%d, %d, %d", ms(p.In.Pause), ms(p.Out.Pause), ms(p.Stall))
}

func (r Row) acts() string {
	switch {
	case r.Exit > 0:
		return fmt.Sprintf("the daemon ends, exit code %d: %s", r.Exit, r.Said)
	case r.Acts:
		return "yes"
	case r.Reason == "":
		return "no"
	}
	return fmt.Sprintf("no, %s: %s", r.State, r.Reason)
}
