// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOptionsAreRefusedBeforeAnythingIsBuilt(t *testing.T) {
	for _, tc := range []struct {
		name string
		opt  Options
		want string
	}{
		{"name", Options{Name: "../x"}, "1 to 12 of a-z and 0-9"},
		{"topology", Options{Topology: "star"}, "bridged, routed, nested and bare"},
		{"pods of a bare lab", Options{Topology: Bare, Pods: 1}, "has none"},
		{"nic", Options{NIC: "irq"}, "thread and softirq"},
		{"napi", Options{NAPI: "rr"}, "nice, fifo and own"},
		{"napi without a thread", Options{NAPI: FIFO, NIC: Softirq}, "napi fifo needs nic thread"},
		{"napi of a thread's own without one", Options{NAPI: Own, NIC: Softirq}, "napi own needs nic thread"},
		{"queues", Options{Queues: 99}, "1 to 16"},
		{"pods", Options{Pods: 65}, "1 to 64"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.opt.StateDir = filepath.Join(t.TempDir(), "lab")
			_, err := Up(tc.opt)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if _, err := os.Stat(tc.opt.StateDir); err == nil {
				t.Error("a state directory was made")
			}
		})
	}
}
