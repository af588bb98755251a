// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"os"
	"slices"
)

// Names lists what is in a directory of /proc, as far as it can be read.
func Names(dir string) []string {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1) // those it got are still worth a look
	return names
}

// PIDs lists the processes.
func PIDs() []string {
	return slices.DeleteFunc(Names("/proc"), func(n string) bool { return n[0] < '1' || n[0] > '9' })
}
