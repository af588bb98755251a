// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/privilege"
)

const unitFile = "../../deploy/overlane.service"

// unit reads the lines of the systemd unit, by key.
func unit(t *testing.T) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string][]string{}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			lines[key] = append(lines[key], value)
		}
	}
	return lines
}

// What the daemon keeps is what its unit gives it.
func TestUnitGrantsWhatTheDaemonKeeps(t *testing.T) {
	got := strings.Fields(strings.Join(unit(t)["CapabilityBoundingSet"], " "))
	var want []string
	for _, c := range privilege.Daemon().Capabilities() {
		want = append(want, c.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("CapabilityBoundingSet is %v, and the daemon keeps %v", got, want)
	}
}

func TestUnitIsHardened(t *testing.T) {
	lines := unit(t)
	for key, want := range map[string]string{
		"NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes", "PrivateDevices": "yes",
		"ProtectClock": "yes", "ProtectControlGroups": "yes", "ProtectHostname": "yes", "ProtectKernelLogs": "yes",
		"ProtectKernelModules": "yes", "LockPersonality": "yes", "MemoryDenyWriteExecute": "yes", "RestrictSUIDSGID": "yes",
		"RestrictNamespaces": "net", "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6 AF_NETLINK",
		"SystemCallArchitectures": "native", "UMask": "0077", "RuntimeDirectoryMode": "0700", "NotifyAccess": "main",
		"MemoryMax": "768M", "LimitNOFILE": "65536",
		// The guardian has to outlive the daemon, and the journal both.
		"KillMode": "control-group", "RuntimeDirectoryPreserve": "yes", "ExecStopPost": "-/usr/bin/overlane off --left",
	} {
		if got := lines[key]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	// What would take away that by which it works: threads in real time, the settings of
	// receive queues, other processes' namespaces, the node's devices.
	for _, key := range []string{"RestrictRealtime", "ProtectKernelTunables", "ProtectProc", "ProcSubset", "PrivateNetwork", "PrivateUsers", "User", "DynamicUser", "AmbientCapabilities"} {
		if got := lines[key]; got != nil {
			t.Errorf("%s is %q, and has to be left out", key, got)
		}
	}
}

// The service manager has the last word on what it understands, where there is one.
func TestUnitIsUnderstood(t *testing.T) {
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("there is no systemd-analyze here to ask")
		return
	}
	data, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	// Its program has to be there.
	path := filepath.Join(t.TempDir(), "overlane.service")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(data), "/usr/bin/overlane", "/bin/true")), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tool, "verify", "--man=no", path).CombinedOutput()
	if err != nil || strings.Contains(string(out), "overlane.service") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
