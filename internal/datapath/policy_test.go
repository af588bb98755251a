// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/overlane/overlane/internal/encap"
)

// The kernel side numbers encapsulations as encap does, and knows the same.
func TestEncapsulationsHaveTheNumbersOfTheKernelSide(t *testing.T) {
	spec, err := loadStages()
	if err != nil {
		t.Fatal(err)
	}
	var kinds *btf.Enum
	if err := spec.Types.TypeByName("ol_tunnel_kind", &kinds); err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds.Values {
		if got := "OL_KIND_" + strings.ToUpper(encap.Kind(k.Value).String()); got != k.Name {
			t.Errorf("%d is %s to the kernel side, and %s to encap", k.Value, k.Name, got)
		}
	}
	if more := encap.Kind(len(kinds.Values) + 1).String(); !strings.HasPrefix(more, "kind(") {
		t.Errorf("the kernel side does not know %s", more)
	}
}

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

// To ask a device for its GRO waits for all that changes devices, and of hundreds of tunnels few are steered.
func TestOnlyTunnelsThatAreSteeredAreAskedForTheirGRO(t *testing.T) {
	d := load(t)
	var asked []uint32
	off, devs := uint32(MaxTunnels+2), []TunnelDevice{}
	for vni := range uint32(MaxTunnels + 3) {
		devs = append(devs, TunnelDevice{
			Kind: encap.VXLAN, VNI: vni, Port: 4789, Ifindex: 1000 + int(vni), NetnsIno: 1,
			NoGRO: func() bool {
				asked = append(asked, vni)
				return vni == off
			},
		})
	}
	for first := range 4 { // those that were there before stay
		asked = nil
		err := d.SetTunnels(devs[first:], nil)
		if many := len(devs)-first > MaxTunnels; errors.Is(err, ErrTooManyTunnels) != many || err != nil && !many {
			t.Fatalf("%d tunnels: %v", len(devs)-first, err)
		}
		if len(asked) != MaxTunnels {
			t.Errorf("of %d tunnels %d are asked: %d", len(devs)-first, len(asked), asked)
		}
	}
	for _, tunnel := range d.policy.Tunnel {
		if (tunnel.NoGro == 1) != (tunnel.Vni == off) {
			t.Errorf("VNI %d: without GRO: %d", tunnel.Vni, tunnel.NoGro)
		}
	}
}
