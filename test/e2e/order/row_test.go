// SPDX-License-Identifier: Apache-2.0

package order

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/control"
)

// row is what one stretch of traffic has shown, for tables.
type row struct {
	Name     string   `json:"name"`
	Placed   string   `json:"placed"` // which lanes on which cores
	Polled   string   `json:"polled"` // the cores that poll the NIC, as far as lanes are chosen there
	Sent     uint64   `json:"sent"`
	Queues   []uint64 `json:"queues"`   // that, by the NIC's queue
	Received uint64   `json:"received"` // and checked
	Late     uint64   `json:"late"`
	Twice    uint64   `json:"twice"`
	Lost     int64    `json:"lost"` // not accounted for
	Drops    account  `json:"drops"`
	Helped   uint64   `json:"helped"`  // steered, split or sent straight to the pod
	Changes  uint64   `json:"changes"` // of lanes, or of whether flows are split
	// Seen are sightings of flows on lanes of stages with several, Second the share of those on their
	// second choice, and Seconds how many flows were seen there.
	Seen    uint64  `json:"seen"`
	Second  float64 `json:"second"`
	Seconds int     `json:"seconds"`
}

// Mark is what tables find rows by in the output of tests.
const mark = "row of order: "

// tell prints the row.
func (r *row) tell(t *testing.T) {
	t.Helper()
	maps.DeleteFunc(r.Drops, func(_ string, n uint64) bool { return n == 0 })
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s%s", mark, data)
}

// placed names lanes by stage.
func placed(st control.Status) string {
	by := map[string][]string{}
	for _, l := range st.Lanes {
		by[l.Stage] = append(by[l.Stage], fmt.Sprint(l.Core))
	}
	var parts []string
	for _, name := range stageNames {
		if cores := by[name]; len(cores) > 0 {
			slices.Sort(cores)
			parts = append(parts, name+" "+strings.Join(cores, ","))
		}
	}
	return strings.Join(parts, " · ")
}
