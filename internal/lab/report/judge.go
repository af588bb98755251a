// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// judge sets the marks of a variant and says in words what they rest on.
func (v *Variant) judge() {
	said := v.Notes
	v.Notes = nil
	if idle, ok := v.Metrics[GeneratorIdle]; ok {
		short := 0
		for _, x := range present(idle.Runs) {
			if x < MinGeneratorIdle {
				short++
			}
		}
		v.GeneratorBound = idle.Median < MinGeneratorIdle
		if short > 0 {
			v.Notes = append(v.Notes, fmt.Sprintf("generator-bound in %d of %d rounds (less than 5%% of its core idle): the path itself may be faster",
				short, len(idle.Runs)))
		}
	}
	if m, ok := v.Metrics[Unsteady]; ok && m.Sum() > 0 {
		v.Unsteady = true
		v.Notes = append(v.Notes, fmt.Sprintf("not steady in %.0f of %d rounds: measured while the daemon still changed what acts", m.Sum(), len(m.Runs)))
	}
	if IsMechanism(v.Name) {
		switch acted := v.median(Acted); {
		case acted.Missing():
			v.Abstained = true
			v.Notes = append(v.Notes, "abstention: acted was not reported, so nothing shows that the mechanism did anything")
		case acted < MinActed:
			v.Abstained = true
			v.Notes = append(v.Notes, fmt.Sprintf("abstention: it acted on %s of the packets, so this row is the stock path's, not the mechanism's",
				percent(float64(acted))))
		}
	}
	v.Notes = append(v.Notes, v.missing()...)
	v.Notes = append(v.Notes, said...) // the caller's reasons follow what they explain
}

// missing says which rounds lack which metrics, one line per set of rounds.
func (v *Variant) missing() []string {
	lacking := make(map[string][]string)
	var sets []string
	for _, metric := range slices.Sorted(maps.Keys(v.Metrics)) {
		m := v.Metrics[metric]
		if m.Missing == 0 {
			continue
		}
		set := m.missingRounds()
		if lacking[set] == nil {
			sets = append(sets, set)
		}
		lacking[set] = append(lacking[set], metric)
	}
	var notes []string
	for _, set := range sets {
		if what := lacking[set]; len(what) == len(v.Metrics) {
			notes = append(notes, "gave no values in "+set)
		} else {
			notes = append(notes, strings.Join(what, ", ")+" missing in "+set)
		}
	}
	return notes
}

// missingRounds writes "2 of 25 rounds (3, 7)".
func (m Metric) missingRounds() string {
	s := fmt.Sprintf("%d of %d rounds", m.Missing, len(m.Runs))
	if m.Missing == len(m.Runs) {
		return s
	}
	var at []string
	for i, x := range m.Runs {
		if x.Missing() {
			at = append(at, strconv.Itoa(i+1))
		}
	}
	return s + " (" + strings.Join(at, ", ") + ")"
}
