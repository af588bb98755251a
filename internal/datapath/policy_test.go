// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/encap"
)

// An operator with too many tunnels is told which ones are left alone.
func TestTunnelsThatAreLeftAloneAreNamed(t *testing.T) {
	if err := tooManyTunnels(nil); err != nil {
		t.Error(err)
	}
	some := []string{
		describe(stagesOlTunnel{Kind: uint8(encap.VXLAN), Port: 4789, Vni: 7}),
		describe(stagesOlTunnel{Kind: uint8(encap.Geneve), Port: 6081, Vni: anyVNI}),
	}
	err := tooManyTunnels(some)
	for _, want := range []string{"at most 16", "vxlan port 4789, VNI 7; geneve port 6081, any VNI"} {
		if !errors.Is(err, ErrTooManyTunnels) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	many := make([]string, 20)
	for i := range many {
		many[i] = some[0]
	}
	if err := tooManyTunnels(many); strings.Count(err.Error(), some[0]) != named || !strings.HasSuffix(err.Error(), "and 12 more") {
		t.Error(err)
	}
}
