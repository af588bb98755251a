// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// Reading changes nothing, so that the machine's own loopback device will do.
func TestListAgreesWithEthtool(t *testing.T) {
	out, err := exec.Command("ethtool", "-k", "lo").Output()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("needs ethtool to compare with")
	}
	if err != nil {
		t.Fatal(err)
	}
	features, err := List("lo")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for line := range strings.Lines(string(out)) {
		name, state, ok := strings.Cut(strings.TrimSpace(line), ": ")
		f, known := features[name] // not the names for groups of features
		if !ok || !known {
			continue
		}
		got := f.String()
		if f.Fixed {
			got += " [fixed]"
		}
		if got != state {
			t.Errorf("%s is %q, by ethtool %q", name, got, state)
		}
		compared++
	}
	if compared < 30 {
		t.Errorf("only %d features compared", compared)
	}
}

func TestWhatDoesNotExistIsAnError(t *testing.T) {
	if _, err := Get("lo", "warp"); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown feature: %v", err)
	}
	if err := Set("lo", "warp", true); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown feature: %v", err)
	}
	if _, err := List("no-such-dev"); err == nil {
		t.Error("a device that does not exist was listed")
	}
	if _, err := List("a-name-too-long-for-a-device"); err == nil {
		t.Error("a device that cannot exist was listed")
	}
}
