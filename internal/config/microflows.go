// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

var microflowKeys = schema{
	word("mode", "spread one flow that is too much for a core over several; auto: when it pays, forced: always, for measurements",
		func(c *Config) *Mode { return &c.Microflows.Mode }, ModeAuto, ModeOff, ModeForced),
	number("batch", "how many packets of the flow go to one core in turn",
		func(c *Config) *int { return &c.Microflows.Batch }, MinBatch, MaxBatch),
	number("cores", "how many branches a flow is split into at most, beside the core that polls the NIC, and no more than are needed; a branch takes one core, or two where there are enough",
		func(c *Config) *int { return &c.Microflows.Cores }, MinBranches, MaxBranches),
	{
		Name: "elephant", About: "the rate from which a flow is split; auto: 40 % of what a core can do, as measured",
		Allowed: "allowed: auto, or a rate such as 500Mbit or 3Gbit", Default: "auto",
		set: setElephant,
	},
	word("udp-order", "exact: UDP is put in order again, and not split where that is impossible; none: UDP may be reordered",
		func(c *Config) *UDPOrder { return &c.Microflows.UDPOrder }, OrderExact, OrderNone),
	{
		Name: "hold", About: "how long a packet waits at most for an earlier one that does not come",
		Allowed: "allowed: 10ms to 1s", Default: Default().Microflows.Hold.String(),
		set: setHold,
	},
}

func number(name, about string, of func(*Config) *int, least, most int) Key {
	return Key{
		Name: name, About: about, Allowed: fmt.Sprintf("allowed: %d to %d", least, most), Default: strconv.Itoa(*of(Default())),
		set: func(c *Config, value string) string {
			v, err := strconv.Atoi(value)
			if err != nil || v < least || v > most {
				return fmt.Sprintf("%q is no such number", value)
			}
			*of(c) = v
			return ""
		},
	}
}

func setHold(c *Config, value string) string {
	v, err := time.ParseDuration(value)
	if err != nil || v < minHold || v > maxHold {
		return fmt.Sprintf("%q is no such time", value)
	}
	c.Microflows.Hold = v
	return ""
}

// setElephant reads bits a second, in the units of tc; auto is 0.
func setElephant(c *Config, value string) string {
	if value == "auto" {
		c.Microflows.Elephant = 0
		return ""
	}
	for _, unit := range []struct {
		name string
		bits float64
	}{{"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}} {
		digits, ok := strings.CutSuffix(value, unit.name)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(digits, 64)
		if err != nil || !(v > 0) || v*unit.bits < 1 || v*unit.bits > math.MaxInt64 {
			break
		}
		c.Microflows.Elephant = uint64(v * unit.bits)
		return ""
	}
	return fmt.Sprintf("%q is not a rate", value)
}
