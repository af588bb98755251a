// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"fmt"
	"io"
)

// WriteText prints the plan as `overlane plan` shows it.
func (p Plan) WriteText(w io.Writer) error {
	var b bytes.Buffer
	if p.Empty() {
		b.WriteString("nothing to change\n")
	}
	for i, s := range p.Steps {
		if i == 0 {
			b.WriteString("steps, in this order (undone in the reverse order):\n")
		}
		fmt.Fprintf(&b, "%4d  %s\n", i+1, s.Setting)
		fmt.Fprintf(&b, "      set   %s -> %s\n", s.Was, s.Want)
		fmt.Fprintf(&b, "      why   %s\n", s.Reason)
		fmt.Fprintf(&b, "      undo  set %s, unless somebody else has changed it by then\n", s.First)
	}
	for i, a := range p.Attach {
		if i == 0 {
			b.WriteString("programs:\n")
		}
		fmt.Fprintf(&b, "      %s at %s of %s\n", a.Program, a.Hook, a.Target)
		fmt.Fprintf(&b, "      why   %s\n", a.Reason)
		b.WriteString("      undo  detached by the kernel when the process ends\n")
	}
	for i, s := range p.Skipped {
		if i == 0 {
			b.WriteString("left as it is:\n")
		}
		fmt.Fprintf(&b, "      %s\n", s.What)
		fmt.Fprintf(&b, "      why   %s\n", s.Reason)
	}
	_, err := w.Write(b.Bytes())
	return err
}
