// SPDX-License-Identifier: Apache-2.0

package mechanism

import (
	"bytes"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/governor"
)

// What was decided, and is not in place, the log does not call active.
func TestTheLogCallsActiveWhatIsInPlace(t *testing.T) {
	var log bytes.Buffer
	to := slog.New(slog.NewTextHandler(&log, nil))
	var told Told
	for _, step := range []struct {
		state governor.State
		acts  bool
	}{
		{governor.Standby, false}, {governor.Parked, false}, {governor.Active, false}, {governor.Active, true}, {governor.Active, true},
		{governor.Active, false}, {governor.Standby, false}, {governor.Active, false}, {governor.Standby, false},
	} {
		told.Decided(to, "m", governor.Decision{State: step.state}, step.acts, true)
	}
	said := regexp.MustCompile(`msg="(.*?)"`).FindAllStringSubmatch(log.String(), -1)
	var got []string
	for _, s := range said {
		got = append(got, s[1])
	}
	if got, want := strings.Join(got, ", "), "m active, m standby"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
