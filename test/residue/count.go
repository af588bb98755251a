// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"fmt"
	"strings"
)

// Objects counts the BPF programs, maps and links in scope.
type Objects struct{ Programs, Maps, Links int }

// Within tells that there are no more of any kind than in o.
func (n Objects) Within(o Objects) bool {
	return n.Programs <= o.Programs && n.Maps <= o.Maps && n.Links <= o.Links
}

// Count looks once for BPF objects alone, such as to tell whether they become more.
func Count(scope Scope) (n Objects, err error) {
	o, err := openScope(scope)
	if err != nil {
		return n, err
	}
	defer o.close()
	s := Snapshot{facts: map[key]fact{}}
	if _, err := o.readBPF(&s); err != nil {
		return n, err
	}
	for k := range s.facts {
		switch kind := strings.Fields(k.what)[1]; kind {
		case programs.name:
			n.Programs++
		case maps.name:
			n.Maps++
		case links.name:
			n.Links++
		default:
			return n, fmt.Errorf("count BPF objects: what is a %s?", kind)
		}
	}
	return n, nil
}
