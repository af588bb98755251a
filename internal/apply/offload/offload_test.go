// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"errors"
	"testing"
)

func TestARequestIsToldFromItsOutcome(t *testing.T) {
	for _, tt := range []struct {
		f    Feature
		want string
	}{
		{Feature{}, "off"},
		{Feature{Active: true, Requested: true}, "on"},
		{Feature{Requested: true}, "off [requested on]"},
		{Feature{Active: true}, "on [requested off]"},
		{Feature{Active: true, Fixed: true}, "on"},
		{Feature{Fixed: true}, "off"},
	} {
		if got := tt.f.String(); got != tt.want {
			t.Errorf("%+v is spelt %q, want %q", tt.f, got, tt.want)
		}
	}
}

// Reading changes nothing, so that the machine's own loopback device will do.
func TestUnknownFeatureIsAnError(t *testing.T) {
	if _, err := Get("lo", "warp"); !errors.Is(err, ErrUnknown) {
		t.Errorf("get: %v", err)
	}
	if err := Set("lo", "warp", true); !errors.Is(err, ErrUnknown) {
		t.Errorf("set: %v", err)
	}
	if _, err := Get("lo", "rx-gro"); err != nil {
		t.Errorf("a feature that there is: %v", err)
	}
}
