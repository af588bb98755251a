// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// NotifyReady tells the service manager that the daemon runs, also after a NotifyReloading.
func NotifyReady(status string) error { return notify("READY=1", "STATUS="+oneLine(status)) }

// NotifyStopping tells the service manager that the daemon is restoring.
func NotifyStopping(status string) error { return notify("STOPPING=1", "STATUS="+oneLine(status)) }

// NotifyReloading tells the service manager that the configuration is being read
// again. NotifyReady has to follow, whatever comes of it.
func NotifyReloading() error {
	// The manager compares the time with that of its own signal.
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return notify("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/int64(time.Microsecond)))
}

// notify speaks sd_notify(3). Without a service manager it does nothing.
func notify(lines ...string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// Go spells an abstract address with the same '@' as the variable does.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return nil
}

// oneLine keeps a text from being read as further assignments.
func oneLine(s string) string { return strings.ReplaceAll(s, "\n", " ") }
