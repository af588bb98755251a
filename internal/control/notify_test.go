// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestNotifySpeaksToTheServiceManager(t *testing.T) {
	for name, path := range map[string]string{
		"path":     filepath.Join(t.TempDir(), "n"),
		"abstract": "@overlane-test-" + filepath.Base(t.TempDir()) + t.Name(),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			t.Setenv("NOTIFY_SOCKET", path)
			for _, tc := range []struct {
				send func() error
				want string
			}{
				{func() error { return NotifyReady("acts on eth0\nREADY=0") }, `^READY=1\nSTATUS=acts on eth0 READY=0$`},
				{func() error { return NotifyStopping("restoring") }, `^STOPPING=1\nSTATUS=restoring$`},
				{NotifyReloading, `^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]*$`},
			} {
				if err := tc.send(); err != nil {
					t.Fatal(err)
				}
				b := make([]byte, 256)
				n, err := l.Read(b)
				if err != nil {
					t.Fatal(err)
				}
				if !regexp.MustCompile(tc.want).Match(b[:n]) {
					t.Errorf("got %q, want %s", b[:n], tc.want)
				}
			}
		})
	}
}

func TestNotifyWithoutAManagerDoesNothing(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := NotifyReady("x"); err != nil {
		t.Error(err)
	}
}

func TestNotifyReportsADeadManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "none"))
	if err := NotifyReady("x"); err == nil || !strings.HasPrefix(err.Error(), "notify service manager: ") {
		t.Error(err)
	}
}
