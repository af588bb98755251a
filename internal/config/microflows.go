// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

const allowedHold = "allowed: 10ms to 1s"

const allowedElephant = "allowed: auto, or a rate such as 500Mbit or 3Gbit"

var microflowKeys = keys{
	{
		name: "mode", about: "spread one flow that is too much for a core over several; auto: when it pays, forced: always, for measurements",
		allowed: allow(ModeAuto, ModeOff, ModeForced), def: string(Default().Microflows.Mode),
		read: func(d *decoder, path string, n ast.Node) error {
			return word(d, path, n, &d.cfg.Microflows.Mode, ModeAuto, ModeOff, ModeForced)
		},
	},
	{
		name: "batch", about: "how many packets of the flow go to one core in turn",
		allowed: allowNumber(MinBatch, MaxBatch), def: strconv.Itoa(Default().Microflows.Batch),
		read: func(d *decoder, path string, n ast.Node) error {
			return d.number(path, n, &d.cfg.Microflows.Batch, MinBatch, MaxBatch)
		},
	},
	{
		name: "cores", about: "how many branches a flow is split into at most, beside the core that polls the NIC, and no more than are needed; a branch takes one core, or two where there are enough",
		allowed: allowNumber(MinBranches, MaxBranches), def: strconv.Itoa(Default().Microflows.Cores),
		read: func(d *decoder, path string, n ast.Node) error {
			return d.number(path, n, &d.cfg.Microflows.Cores, MinBranches, MaxBranches)
		},
	},
	{
		name: "elephant", about: "the rate from which a flow is split; auto: 40 % of what a core can do, as measured",
		allowed: allowedElephant, def: "auto",
		read: func(d *decoder, path string, n ast.Node) error {
			return d.rate(path, n, &d.cfg.Microflows.Elephant)
		},
	},
	{
		name: "udp-order", about: "exact: UDP is put in order again, and not split where that is impossible; none: UDP may be reordered",
		allowed: allow(OrderExact, OrderNone), def: string(Default().Microflows.UDPOrder),
		read: func(d *decoder, path string, n ast.Node) error {
			return word(d, path, n, &d.cfg.Microflows.UDPOrder, OrderExact, OrderNone)
		},
	},
	{
		name: "hold", about: "how long a packet waits at most for an earlier one that does not come",
		allowed: allowedHold, def: Default().Microflows.Hold.String(),
		read: func(d *decoder, path string, n ast.Node) error {
			return d.duration(path, n, &d.cfg.Microflows.Hold, MinHold, MaxHold, allowedHold)
		},
	},
}

func (d *decoder) duration(path string, n ast.Node, dst *time.Duration, least, most time.Duration, allowed string) error {
	s, err := d.text(path, n, allowed)
	if err != nil {
		return err
	}
	v, err := time.ParseDuration(s)
	if err != nil || v < least || v > most {
		return d.fail(n, path, fmt.Sprintf("%q is no such time", s), allowed)
	}
	*dst = v
	return nil
}

func allowNumber(least, most int) string { return fmt.Sprintf("allowed: %d to %d", least, most) }

func (d *decoder) number(path string, n ast.Node, dst *int, least, most int) error {
	allowed := allowNumber(least, most)
	s, err := d.text(path, n, allowed)
	if err != nil {
		return err
	}
	v, err := strconv.Atoi(s)
	if err != nil || v < least || v > most {
		return d.fail(n, path, fmt.Sprintf("%q is no such number", s), allowed)
	}
	*dst = v
	return nil
}

// rate reads bits a second, in the units of tc; auto is 0.
func (d *decoder) rate(path string, n ast.Node, dst *uint64) error {
	s, err := d.text(path, n, allowedElephant)
	if err != nil {
		return err
	}
	if s == "auto" {
		*dst = 0
		return nil
	}
	for _, unit := range []struct {
		name string
		bits float64
	}{{"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}} {
		digits, ok := strings.CutSuffix(s, unit.name)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(digits, 64)
		if err != nil || !(v > 0) || v*unit.bits < 1 || v*unit.bits > math.MaxInt64 {
			break
		}
		*dst = uint64(v * unit.bits)
		return nil
	}
	return d.fail(n, path, fmt.Sprintf("%q is not a rate", s), allowedElephant)
}
