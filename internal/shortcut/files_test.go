// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is too long is not read to its end, also by the next of a file that is held open.
func TestFilesAreReadToABound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(path, []byte(strings.Repeat("0123456789abcde\n", most/8)), 0o600); err != nil {
		t.Fatal(err)
	}
	var f files
	for range 2 {
		list, err := f.lines(path)
		if n := 16 * len(list); !errors.Is(err, errLong) || n < most || n > most+4096 {
			t.Errorf("%d bytes: %v", n, err)
		}
		if list, err := f.first(path, 2*most); err != nil || len(list) != most/8 {
			t.Errorf("%d lines: %v", len(list), err)
		}
	}
	if err := f.close(); err != nil {
		t.Error(err)
	}
}
