// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"errors"
	"testing"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
)

// asked counts the namespaces that are opened, which cannot be.
type asked int

func (a *asked) Namespace(uint64) (*netns.Handle, error) {
	*a++
	return nil, errors.New("too many open files")
}

// Hundreds of devices are not asked for programs that are nowhere on the machine.
func TestDevicesAreAskedWhereADataplaneIsLoaded(t *testing.T) {
	snap := node.Snapshot{Underlays: []node.Underlay{{Dev: node.Dev{NetnsCookie: 1, Ifindex: 2, Name: "eth0"}}}}
	for _, tc := range []struct {
		loaded bool
		err    error
		asks   int
	}{
		{false, nil, 0},
		{true, nil, 1},
		{false, errors.New("operation not permitted"), 1},
	} {
		var spaces asked
		list := dataplanes(&spaces, snap, func() (bool, error) { return tc.loaded, tc.err })
		if int(spaces) != tc.asks || len(list) != tc.asks {
			t.Errorf("loaded: %t (%v): %d namespaces are asked, %d devices left alone; want %d", tc.loaded, tc.err, spaces, len(list), tc.asks)
		}
	}
}
