// SPDX-License-Identifier: Apache-2.0

package apply

// fault, where a test sets it, is called at every point at which a crash
// leaves a different state behind. It is nil in production; see
// fault_kill.go for the build that sets it by environment.
var fault func(point string)

func at(point string) {
	if fault != nil {
		fault(point)
	}
}
