// SPDX-License-Identifier: Apache-2.0

package printable

import "fmt"

// Plural counts things: "1 rule", "2 rules".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
