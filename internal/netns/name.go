// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"strings"

	"golang.org/x/sys/unix"
)

// ValidDeviceName tells whether a network device can have a name (dev_valid_name, net/core/dev.c);
// of the control characters, which can stand in one, none is let through.
func ValidDeviceName(s string) bool {
	if s == "" || len(s) >= unix.IFNAMSIZ || s == "." || s == ".." {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || r == ':' || r <= ' ' || r == 0x7f
	})
}
