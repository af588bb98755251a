// SPDX-License-Identifier: Apache-2.0

package shortcut

import "github.com/overlane/overlane/internal/nlsock"

// answers asks one question, and parses each answer; what parse refuses is left out.
func answers[T any](c *nlsock.Conn, typ, flags uint16, req []byte, parse func([]byte) (T, bool)) (list []T, err error) {
	err = c.Do(typ, flags, req, func() { list = nil }, func(b []byte) error {
		if v, ok := parse(b); ok {
			list = append(list, v)
		}
		return nil
	})
	return list, err
}
