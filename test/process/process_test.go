// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAStoppedProcessStandsStill(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if state, err := moves(pid); err != nil || state == "" {
		t.Errorf("before: %q, %v", state, err)
	}
	if err := Stop(pid); err != nil {
		t.Error(err)
	}
	if state, err := moves(pid); err != nil || state != "" {
		t.Errorf("after: %q, %v", state, err)
	}
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Error(err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if err := Stop(pid); err == nil {
		t.Error("a process that has ended was stopped")
	}
}
