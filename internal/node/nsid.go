// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
)

// rtgenmsg and its padding, which the attributes follow.
func rtgenmsg() []byte { return make([]byte, 4) }

// parseNSID returns -1 if there is no id in the message.
func parseNSID(b []byte) int {
	v, found := nlsock.ListOf(b, len(rtgenmsg())).Find(unix.NETNSA_NSID)
	if !found {
		return -1
	}
	return int(int32(nlsock.U32(v)))
}

// nsids lists the ids of other namespaces that this one knows.
func (c *conn) nsids() ([]int, error) {
	var ids []int
	err := c.Do(unix.RTM_GETNSID, unix.NLM_F_DUMP, rtgenmsg(),
		func() { ids = nil },
		func(b []byte) error {
			if id := parseNSID(b); id >= 0 {
				ids = append(ids, id)
			}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("list namespace ids: %w", err)
	}
	return ids, nil
}

// nsidOf returns the id that this namespace has for the one behind fd, -1 if
// none. It does not assign one.
func (c *conn) nsidOf(fd int) (int, error) {
	id := -1
	err := c.Do(unix.RTM_GETNSID, 0, nlsock.Attr32(rtgenmsg(), unix.NETNSA_FD, uint32(fd)), func() {},
		func(b []byte) error { id = parseNSID(b); return nil })
	if err != nil {
		return -1, fmt.Errorf("read namespace id: %w", err)
	}
	return id, nil
}
