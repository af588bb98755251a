// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"

	"github.com/overlane/overlane/internal/printable"
)

// Text is the plan as `overlane plan` shows it.
func (p Plan) Text() string {
	var b strings.Builder
	if p.Empty() {
		b.WriteString("nothing to change\n")
	}
	if p.ProgramsFirst {
		writeAttach(&b, p.Attach)
	}
	writeSteps(&b, p.Steps)
	writeFuture(&b, p.Future)
	if !p.ProgramsFirst {
		writeAttach(&b, p.Attach)
	}
	writeSkipped(&b, p.Skipped)
	return printable.Lines(b.String())
}

func writeSteps(b *strings.Builder, steps []Step) {
	for i, s := range steps {
		if i == 0 {
			b.WriteString("steps, in this order (undone in the reverse order):\n")
		}
		fmt.Fprintf(b, "%4d  %s\n", i+1, s.Setting)
		fmt.Fprintf(b, "      set   %s -> %s\n", s.Was, s.Want)
		fmt.Fprintf(b, "      why   %s\n", s.Reason)
		fmt.Fprintf(b, "      undo  set %s, unless the operator or another program has changed it by then\n", s.First)
	}
}

func writeFuture(b *strings.Builder, threads []FutureThreads) {
	for i, f := range threads {
		if i == 0 {
			b.WriteString("threads that come with that, one per receive queue:\n")
		}
		fmt.Fprintf(b, "      %d of %s\n", f.Count, f.Target)
		fmt.Fprintf(b, "      set   %s\n", f.Want)
		fmt.Fprintf(b, "      why   %s\n", f.Reason)
		b.WriteString("      undo  set what they were when they came, unless the operator or another program has changed it by then\n")
	}
}

func writeAttach(b *strings.Builder, list []Attachment) {
	for i, a := range list {
		if i == 0 {
			b.WriteString("programs:\n")
		}
		fmt.Fprintf(b, "      %s at %s of %s\n", a.Program, a.Hook, a.Target)
		fmt.Fprintf(b, "      why   %s\n", a.Reason)
		b.WriteString("      undo  detached by the kernel when the process ends\n")
	}
}

func writeSkipped(b *strings.Builder, list []Skip) {
	for i, s := range list {
		if i == 0 {
			b.WriteString("left as it is:\n")
		}
		fmt.Fprintf(b, "      %s\n", s.What)
		fmt.Fprintf(b, "      why   %s\n", s.Reason)
	}
}
