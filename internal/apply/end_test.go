// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"os/exec"
	"strconv"
	"testing"

	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/test/process"
)

// A daemon that is stopped does not see SIGTERM: it is killed, and its guardian restores.
func TestAHolderThatHangsIsEnded(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	d := b.start(script{Plans: [][]plan.Step{b.steps()}, Guardian: true})
	b.must(process.Stop(d.cmd.Process.Pid))
	ended, err := EndHolder(b.state, b.cookie[b.a])
	b.must(err)
	if ended != (Ended{d.cmd.Process.Pid, true}) {
		t.Errorf("ended: %+v, not pid %d", ended, d.cmd.Process.Pid)
	}
	d.wait()
	_, err = RestoreLeft(b.state, b.cookie[b.a])
	b.must(err)
	b.wantSnapshot(before)
	b.wantNoJournal()
}

// The number in the lock may have become another process's: that one lives on.
func TestAProcessThatDoesNotHaveTheLockIsNotEnded(t *testing.T) {
	b := newBed(t)
	other := exec.Command("cat")
	in, err := other.StdinPipe()
	b.must(err)
	b.must(other.Start())
	dir := b.open()
	b.must(dir.root.WriteFile(lockName, []byte(strconv.Itoa(other.Process.Pid)+" \n"), 0o600))
	ended, err := EndHolder(b.state, b.cookie[b.a])
	b.must(err)
	if ended.PID != 0 {
		t.Errorf("ended: %+v", ended)
	}
	b.must(in.Close())
	if err := other.Wait(); err != nil {
		t.Errorf("another process: %v", err)
	}
}
