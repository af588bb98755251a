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
	ids, err := nlsock.Collect(c.Conn, unix.RTM_GETNSID, rtgenmsg(), func(b []byte) (int, bool) {
		id := parseNSID(b)
		return id, id >= 0
	})
	if err != nil {
		return nil, fmt.Errorf("list namespace ids: %w", err)
	}
	return ids, nil
}

// nsidOf returns the id that this namespace has for the one behind fd, -1 if
// none. It does not assign one.
func (c *conn) nsidOf(fd int) (int, error) {
	b, err := c.Ask(unix.RTM_GETNSID, nlsock.Attr32(rtgenmsg(), unix.NETNSA_FD, uint32(fd)))
	if err != nil {
		return -1, fmt.Errorf("read namespace id: %w", err)
	}
	return parseNSID(b), nil
}
