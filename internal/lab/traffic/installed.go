// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// packages are Debian's names for programs that come in one of another name.
var packages = map[string]string{"memcaslap": "libmemcached-tools", "nginx": "nginx-light"}

// find returns a program's path. Servers lie where not every PATH leads.
func find(name string) (string, error) {
	for _, at := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(at); err == nil {
			return path, nil
		}
	}
	return "", missing(name)
}

// Installed tells whether programs can be started, and if not, what to install.
func Installed(names ...string) error {
	lacking := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		_, err := find(name)
		return err == nil
	})
	if len(lacking) == 0 {
		return nil
	}
	return missing(lacking...)
}

func missing(names ...string) error {
	var from []string
	for _, name := range names {
		if p, ok := packages[name]; ok {
			name = p
		}
		from = append(from, name)
	}
	return fmt.Errorf("needs %s: apt-get install %s", strings.Join(names, ", "), strings.Join(from, " "))
}
