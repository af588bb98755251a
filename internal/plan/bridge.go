// SPDX-License-Identifier: Apache-2.0

package plan

// BridgeCall is a setting by which the bridges of a namespace hand what they forward to
// netfilter's hooks of IP.
type BridgeCall struct {
	Setting
	// Value is empty where br_netfilter is not there.
	Value string
	// Used says what is at those hooks, empty if nothing is.
	Used string
}

// uncalled is the value that leaves netfilter out.
const uncalled = "0"

// CallsNetfilter returns the setting of that name for a whole namespace.
func CallsNetfilter(netnsCookie uint64, sysctl string) Setting {
	return Setting{Target: Target{NetnsCookie: netnsCookie}, Kind: Sysctl, Attr: sysctl}
}

// BridgeCalls plans that bridges do not call unused hooks.
func BridgeCalls(calls []BridgeCall, owned map[Setting]Owned) Plan {
	p := Plan{Steps: []Step{}, Attach: []Attachment{}, Skipped: []Skip{}}
	for _, c := range calls {
		_, touched := owned[c.Setting]
		why := c.Used
		if why == "" && touched && c.Value != uncalled {
			why = "left alone: another program has switched it on again"
		}
		switch {
		case c.Value == "" || c.Value == uncalled && why == "":
		case why != "":
			p.Skipped = append(p.Skipped, Skip{What: c.Setting.String(), Reason: why, Target: c.Target})
		default:
			p.Steps = append(p.Steps, Step{Setting: c.Setting, Was: c.Value, First: c.Value, Want: uncalled,
				Reason: "nothing is at the hooks that bridges call with each packet"})
		}
	}
	p.Steps = of(ByBridging, p.Steps)
	return p
}
