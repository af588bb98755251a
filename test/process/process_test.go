// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os/exec"
	"strings"
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

func TestWhereAProcessStands(t *testing.T) {
	const word = "overlane-where-a-process-stands"
	cmd := exec.Command("sh", "-c", "read x", word)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	where, pid := Where(word), cmd.Process.Pid
	in.Close()
	_ = cmd.Wait() // it found no line to read
	for _, want := range []string{fmt.Sprintf("/proc/%d: ", pid), fmt.Sprintf("\n%d (", pid)} {
		if !strings.Contains(where, want) {
			t.Errorf("no %q in\n%s", want, where)
		}
	}
	if where := Where(word); where != "" {
		t.Errorf("it has ended, and is at\n%s", where)
	}
}
