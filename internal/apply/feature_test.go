// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"testing"

	"github.com/overlane/overlane/internal/ethtool"
)

func TestARequestIsToldFromItsOutcome(t *testing.T) {
	for _, tt := range []struct {
		f    ethtool.Feature
		want string
	}{
		{ethtool.Feature{}, "off"},
		{ethtool.Feature{Active: true, Requested: true}, "on"},
		{ethtool.Feature{Requested: true}, "off [requested on]"},
		{ethtool.Feature{Active: true}, "on [requested off]"},
		{ethtool.Feature{Active: true, Fixed: true}, "on"},
		{ethtool.Feature{Fixed: true}, "off"},
	} {
		if got := FeatureValue(tt.f); got != tt.want {
			t.Errorf("%+v is spelt %q, want %q", tt.f, got, tt.want)
		}
	}
}
