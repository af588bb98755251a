// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"os"
	"strings"

	"github.com/overlane/overlane/internal/netns"
)

// Listens tells whether a TCP socket listens on a port, without connecting to
// it: some servers end after their first client.
func Listens(ns *netns.Handle, port uint16) (found bool, err error) {
	return hasSocket(ns, "tcp", port, "0A")
}

// Bound tells whether a UDP socket is bound to a port.
func Bound(ns *netns.Handle, port uint16) (found bool, err error) {
	return hasSocket(ns, "udp", port, "07")
}

func hasSocket(ns *netns.Handle, proto string, port uint16, state string) (found bool, err error) {
	want := fmt.Sprintf(":%04X", port)
	err = ns.Do(func() error {
		for _, name := range []string{proto, proto + "6"} {
			data, err := os.ReadFile("/proc/thread-self/net/" + name)
			if os.IsNotExist(err) {
				continue
			}
			if err != nil {
				return fmt.Errorf("list sockets: %w", err)
			}
			for line := range strings.Lines(string(data)) {
				f := strings.Fields(line)
				if len(f) > 3 && strings.HasSuffix(f[1], want) && f[3] == state {
					found = true
				}
			}
		}
		return nil
	})
	return found, err
}
