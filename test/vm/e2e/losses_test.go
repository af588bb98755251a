// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// What the kernel drops, by where: veth's ring has no counter of its own on Linux 7.3.
const (
	dropTrigger = "/sys/kernel/tracing/events/skb/kfree_skb/trigger"
	dropHist    = "/sys/kernel/tracing/events/skb/kfree_skb/hist"
	byPlace     = "hist:keys=location.sym-offset,reason"
)

// watchLosses has all of the machine's drops counted while the test runs.
func watchLosses(t *testing.T) {
	t.Helper()
	if !*machineWide {
		return
	}
	if err := os.WriteFile(dropTrigger, []byte(byPlace), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			hist, err := os.ReadFile(dropHist)
			t.Logf("dropped by the kernel (%v):\n%s", err, hist)
		}
		if err := os.WriteFile(dropTrigger, []byte("!"+byPlace), 0); err != nil {
			t.Error(err)
		}
	})
}

var inRing = regexp.MustCompile(`veth_xmit.*hitcount: +(\d+)`)

// fullRings counts packets that veth devices dropped since their ring was full, on the
// whole machine.
func fullRings(t *testing.T) (n uint64) {
	t.Helper()
	if !*machineWide {
		return 0
	}
	hist, err := os.ReadFile(dropHist)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(hist)) {
		if m := inRing.FindStringSubmatch(line); m != nil {
			c, err := strconv.ParseUint(m[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			n += c
		}
	}
	return n
}
