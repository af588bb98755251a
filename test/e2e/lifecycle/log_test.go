// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
)

// line is one of a daemon's log: its attributes by name.
type line map[string]string

var attribute = regexp.MustCompile(`([a-z_]+)=("(?:[^"\\]|\\.)*"|\S*)`)

func lines(log string) (list []line) {
	for text := range strings.Lines(log) {
		l := line{}
		for _, m := range attribute.FindAllStringSubmatch(text, -1) {
			value := m[2]
			if plain, err := strconv.Unquote(value); err == nil {
				value = plain
			}
			l[m[1]] = value
		}
		list = append(list, l)
	}
	return list
}

// tally counts what lines with a message say was changed, by the given attributes.
func tally(list []line, msg string, by ...string) map[string]int {
	n := map[string]int{}
	for _, l := range list {
		if l["msg"] != msg {
			continue
		}
		count := 1
		if many, err := strconv.Atoi(l["count"]); err == nil {
			count = many
		}
		var key []string
		for _, a := range by {
			key = append(key, l[a])
		}
		n[strings.Join(key, " ")] += count
	}
	return n
}

// The log tells the life of a daemon: its start, each setting and program that came and went, what was decided,
// and its end; and of a life without a mishap nothing that looks like one.
func TestTheLogTellsWhatWasChanged(t *testing.T) {
	b := lab(t, bed.Options{Pods: 2})
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: strings.Replace(forced, "metrics: off\n", "priority: {rules: [{name: dns, proto: udp, port: 53}]}\n", 1)})
	l := rig.StartLoad(t, b, 4)
	d.Acting()
	cookie, err := d.NS.Cookie()
	must(t, err)
	dir, err := apply.Open(d.State, cookie)
	must(t, err)
	changed, err := dir.Entries()
	must(t, err)
	must(t, dir.Close())
	l.GoesOn()
	ends(t, d)
	l.Stop()

	list := lines(d.Log())
	first, last := list[0], list[len(list)-1]
	if first["msg"] != "start" || first["version"] == "" || first["kernel"] == "" || first["tier"] != "tc" || first["cores"] == "" {
		t.Errorf("the first line is %v", first)
	}
	if last["msg"] != "stop" {
		t.Errorf("the last line is %v", last)
	}
	slow := []string{"some packets may be overtaken once", "flows drained meanwhile"} // what a busy machine is late with
	for _, l := range list {
		if l["level"] != "INFO" && l["level"] != "DEBUG" && !slices.Contains(slow, l["msg"]) {
			t.Errorf("nothing went wrong, and the log says %v", l)
		}
	}
	// What is in the journal was written, and as often restored as it was written first.
	written, restored := tally(list, "setting written", "setting"), tally(list, "setting restored", "setting")
	want := map[string]int{}
	for _, e := range changed {
		what := e.Attr
		if e.Kind == "sched" {
			what = "scheduling"
		}
		want[what]++
	}
	if len(want) == 0 {
		t.Error("nothing was changed")
	}
	for what, n := range want {
		if written[what] < n || restored[what] < n {
			t.Errorf("%s: %d are in the journal, %d are said to be written, %d restored", what, n, written[what], restored[what])
		}
	}
	attached, detached := tally(list, "program attached", "hook", "program", "mechanism"), tally(list, "program detached", "hook", "program", "mechanism")
	for _, what := range []string{"tcx ingress ol_underlay_in ", "tcx egress ol_pod_out ", "XDP  priority"} {
		if attached[what] == 0 || attached[what] != detached[what] {
			t.Errorf("%s: %d times attached, %d detached", what, attached[what], detached[what])
		}
	}
	if n := tally(list, "rule added", "mechanism", "rule", "class"); n["priority dns latency"] != 1 {
		t.Errorf("rules: %v", n)
	}
	if n := tally(list, "pipeline active", "mechanism"); n["pipeline"] != 1 {
		t.Errorf("decisions: %v", n)
	}
	if t.Failed() {
		t.Log("the log:\n" + d.Log())
	}
	if !slices.ContainsFunc(list, func(l line) bool { return l["msg"] == "running" }) {
		t.Error("it does not say that it runs")
	}
}
