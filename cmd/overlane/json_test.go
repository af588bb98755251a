// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/control"
)

// typed fails the test where what is printed as JSON is not what programs can rely on: one type for each name,
// numbers for namespaces, and null for what was not measured.
func typed(t *testing.T, what, text string) map[string]any {
	t.Helper()
	var all map[string]any
	dec := json.NewDecoder(strings.NewReader(text))
	if err := dec.Decode(&all); err != nil {
		t.Fatalf("%s: %v\n%s", what, err, text)
	}
	if dec.More() {
		t.Errorf("%s: more than one JSON value:\n%s", what, text)
	}
	if all["schema"] != float64(control.Schema) {
		t.Errorf("%s: schema is %v, want %d", what, all["schema"], control.Schema)
	}
	types := map[string]string{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, val := range v {
				at := path + "." + key
				switch key {
				case "netns":
					if n, ok := val.(float64); !ok || n == 0 && path != "" {
						t.Errorf("%s: %s is %v", what, at, val)
					}
				case "ns_per_packet", "cost", "wait":
					if val == float64(0) {
						t.Errorf("%s: %s is 0, want null for what was not measured", what, at)
					}
				}
				if is := fmt.Sprintf("%T", val); val != nil {
					if was := types[key]; was != "" && was != is {
						t.Errorf("%s: %s is %s, and elsewhere %s", what, at, is, was)
					}
					types[key] = is
				}
				walk(at, val)
			}
		case []any:
			for i, val := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), val)
			}
		}
	}
	walk("", all)
	return all
}

func TestPlanAndDoctorAsJSON(t *testing.T) {
	o := emptyNode(t)
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip from iproute2")
	}
	must := func(line string) {
		t.Helper()
		if err := o.netns.Do(func() error {
			out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	must("link add nic type veth peer name wire")
	must("addr add 10.1.0.1/24 dev nic")
	must("link set nic up")
	must("link set wire up")
	must("link add vx0 type vxlan id 42 dstport 4789 local 10.1.0.1 remote 10.1.0.2 dev nic")
	must("link set vx0 up")
	for _, verb := range []string{"plan", "doctor"} {
		r := o.run(verb, "--json")
		all := typed(t, verb, r.stdout)
		if all["error"] != nil || r.code != cli.ExitOK {
			t.Errorf("%s: %v, exit code %d", verb, all["error"], r.code)
		}
		if verb == "doctor" {
			found := false
			for _, d := range all["devices"].([]any) {
				dev := d.(map[string]any)
				found = found || dev["role"] == "tunnel" && dev["vni"] == float64(42) && dev["network"] == "vx0"
			}
			if !found {
				t.Errorf("doctor names no tunnel with its VNI: %s", r.stdout)
			}
		} else if steps := all["steps"].([]any); len(steps) == 0 && len(all["skipped"].([]any)) == 0 {
			t.Errorf("plan says nothing of the tunnel: %s", r.stdout)
		}
	}
}

// A program that asks for JSON gets it when it fails, too, with the exit code that people get.
func TestErrorsAsJSON(t *testing.T) {
	o := emptyNode(t)
	bad := configFile(t, "pipeline: sometimes\n")
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"status", "--json"}, cli.ExitFailure, "no overlane daemon is running"},
		{[]string{"plan", "--json", "--config", bad}, cli.ExitUsage, "sometimes"},
		{[]string{"plan", "--json", "--nonsense"}, cli.ExitUsage, "nonsense"},
		{[]string{"nonsense", "--json"}, cli.ExitUsage, "unknown"},
	} {
		r := o.run(tc.args...)
		r.fails(t, tc.code, tc.says)
		all := typed(t, strings.Join(tc.args, " "), r.stdout)
		if said, _ := all["error"].(string); !strings.Contains(said, tc.says) || all["exit_code"] != float64(tc.code) {
			t.Errorf("%v prints %s", tc.args, r.stdout)
		}
	}
	// A report that is printed beside an error holds it.
	o.uid = 65534
	r := o.run("doctor", "--json")
	all := typed(t, "doctor as another user", r.stdout)
	if said, _ := all["error"].(string); !strings.Contains(said, "need root") || r.code == cli.ExitOK || all["tiers"] == nil {
		t.Errorf("doctor as another user: exit code %d, %s", r.code, r.stdout)
	}
}

func TestStatusAsJSON(t *testing.T) {
	var b strings.Builder
	st := busyStatus
	st.Schema = control.Schema
	st.Trials = []control.Trial{{Mechanism: "pipeline", Verdict: "better", Packets: control.Measured(2.5)}}
	if err := cli.JSON(&b, st); err != nil {
		t.Fatal(err)
	}
	all := typed(t, "status", b.String())
	costs := all["stage_costs"].([]any)
	if costs[0].(map[string]any)["ns_per_packet"] != 901.4 || costs[1].(map[string]any)["ns_per_packet"] != nil {
		t.Errorf("costs are %v", costs)
	}
	if pod := all["devices"].([]any)[2].(map[string]any); pod["place"].(map[string]any)["container"] != "3f2a9c1b7d44" || pod["vni"] != float64(4097) {
		t.Errorf("the pod is %v", pod)
	}
}
