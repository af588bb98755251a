// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"testing"

	"github.com/overlane/overlane/internal/shell"
)

func TestExitCodes(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code int
	}{
		{nil, ExitOK},
		{errors.New("x"), ExitFailure},
		{Usage("x"), ExitUsage},
		{fmt.Errorf("y: %w", Unsupported("r", shell.Command("c"))), ExitUnsupported},
		{errors.Join(errors.New("x"), Unsupported("r", shell.Line{})), ExitUnsupported},
	} {
		if got := Code(tc.err); got != tc.code {
			t.Errorf("%v: %d, want %d", tc.err, got, tc.code)
		}
	}
	if got := Message(errors.Join(errors.New("x"), Unsupported("r", shell.Command("c")))); got != "x; not supported here: r; mend it with: c" {
		t.Error(got)
	}
}
