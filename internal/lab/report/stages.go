// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// AllStages is the sum over the stages.
const AllStages = "sum"

// StageMetric is the metric of what a stage costs, in ns per packet.
func StageMetric(stage string) string {
	return "stage_" + strings.NewReplacer(" ", "_", ",", "").Replace(stage) + "_ns"
}

// leastShare of the largest sum makes a stage worth a line.
const leastShare = 0.003

// Stages writes what each stage costs, in ns per packet, variants side by side: medians of the
// rounds, and the part of the whole.
func (r Result) Stages(w io.Writer, stages []string) error {
	b := bufio.NewWriter(w)
	r.header(b)
	g := new(grid)
	g.column(left, "", "stage")
	most := 0.0
	value := func(v Variant, stage string) float64 {
		if x := v.median(StageMetric(stage)); !x.Missing() {
			return float64(x)
		}
		return 0
	}
	for _, v := range r.Variants {
		g.column(right, v.Name, "ns/packet")
		g.column(right, "", "share")
		most = max(most, value(v, AllStages))
	}
	for _, stage := range stages {
		row, shown := []string{stage}, false
		for _, v := range r.Variants {
			ns, all := value(v, stage), value(v, AllStages)
			if ns == 0 || all == 0 {
				row = append(row, "", "")
				continue
			}
			shown = shown || ns >= leastShare*most
			row = append(row, fmt.Sprintf("%.0f", ns), fmt.Sprintf("%.0f%%", 100*ns/all))
		}
		if shown {
			g.row("", row...)
		}
	}
	rate := []string{"thousand packets a second"}
	for _, v := range r.Variants {
		kpps := ""
		if x := v.median(KPPS); !x.Missing() {
			kpps = fmt.Sprintf("%.0f", x)
		}
		rate = append(rate, kpps, "")
	}
	g.row("", rate...)
	g.write(b)
	r.notes(b)
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write stages of %s: %w", r.Scenario, err)
	}
	return nil
}
