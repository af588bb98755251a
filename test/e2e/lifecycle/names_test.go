// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
)

// A pod chooses the name of a chain: what doctor and plan then tell the operator to run runs nothing of the pod's, as it
// stands in JSON as well, and shows the chain. Status has the words of plan.
func TestWhatAPodNamesIsNoOrder(t *testing.T) {
	for _, tt := range []struct{ name, tool, chain string }{
		{"of nftables", "iptables-nft", "a;touch${IFS}$P"},
		{"of legacy iptables", "iptables-legacy", "a;touch${IFS}$P"},
		{"with quotes", "iptables-legacy", `a';touch${IFS}$P;'"\`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := exec.LookPath(tt.tool); err != nil {
				t.Skip("needs " + tt.tool)
			}
			b := rig.Lab(t, bed.Options{Topology: bed.Nested})
			h := b.Receiver()
			for _, args := range [][]string{
				{"-N", tt.chain}, {"-A", "INPUT", "-j", tt.chain},
				{"-A", tt.chain, "-p", "udp", "-m", "length", "--length", "0:300", "-j", "ACCEPT"},
			} {
				must(t, ofPod(h).Do(func() error {
					if out, err := exec.Command(tt.tool, args...).CombinedOutput(); err != nil {
						return fmt.Errorf("%s %q: %w\n%s", tt.tool, args, err, out)
					}
					return nil
				}))
			}
			spec := rig.Spec{NS: h.NS}
			said := []string{rig.Run(t, spec, "doctor").Out, rig.Run(t, spec, "doctor", "--json").Out, rig.Run(t, spec, "plan").Out, rig.Run(t, spec, "plan", "--json").Out}
			commands := 0
			for _, text := range said {
				for _, command := range regexp.MustCompile(`nsenter --net=.*`).FindAllString(text, -1) {
					commands++
					runsNothingElse(t, command)
				}
				if strings.ContainsFunc(strings.ReplaceAll(text, "\n", ""), func(r rune) bool { return r < ' ' }) {
					t.Errorf("it has what a terminal obeys: %q", text)
				}
			}
			if commands < 4 {
				t.Errorf("%d commands in %q", commands, said)
			}
			var found struct {
				Findings []struct{ What, Fix string }
			}
			must(t, json.Unmarshal([]byte(said[1]), &found))
			shown := false
			for _, f := range found.Findings {
				if strings.Contains(f.What, "packet's length") {
					out, err := exec.Command("sh", "-c", f.Fix).CombinedOutput()
					shown = err == nil && strings.Contains(string(out), "length")
					if !shown {
						t.Errorf("%s: %v\n%s", f.Fix, err, out)
					}
				}
			}
			if !shown {
				t.Errorf("doctor says %+v", found.Findings)
			}
		})
	}
}

// runsNothingElse fails the test if a command, as it stands in some text, makes the file that the pod wants.
func runsNothingElse(t *testing.T, command string) {
	t.Helper()
	bait := t.TempDir() + "/made"
	cmd := exec.Command("sh", "-c", command)
	cmd.Env = append(os.Environ(), "P="+bait)
	out, _ := cmd.CombinedOutput() // the end of the line may be JSON's
	if _, err := os.Stat(bait); err == nil {
		t.Errorf("the pod's order was obeyed: %s\n%s", command, out)
	}
}
