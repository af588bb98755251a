// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/netns"
	"golang.org/x/sys/unix"
)

const childEnv = "LAB_TEST_START_PROCESS"

// The test binary plays the lab: it starts a program and says which.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	ns, err := netns.Current()
	if err == nil {
		var p *Process
		if p, err = StartProcess(ns, nil, "sleep", "100"); err == nil {
			fmt.Println(p.cmd.Process.Pid)
			<-p.Done()
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestProgramsDoNotOutliveTheLab(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: enters a network namespace")
	}
	lab := exec.Command(os.Args[0])
	lab.Env = append(os.Environ(), childEnv+"=1")
	out, err := lab.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := lab.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	// A descriptor of the process itself: its number may be given away again.
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := lab.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = lab.Wait()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 5000); n != 1 {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		t.Errorf("the program of a killed lab goes on (%v)", err)
	}
}

func TestProcessSaysWhyItEnded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: enters a network namespace")
	}
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if _, err := StartProcess(ns, nil, "no-such-program-here"); err == nil || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("a program that is not there: %v", err)
	}
	p, err := StartProcess(ns, nil, "sh", "-c", "echo bad luck >&2; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "bad luck") {
		t.Errorf("a program that failed: %v", err)
	}
	p, err = StartProcess(ns, nil, "sleep", "100")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Wait(ctx); err == nil {
		t.Error("no error from a wait that was called off")
	}
	p, err = StartProcess(ns, nil, "sleep", "100")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(5 * time.Second); err != nil {
		t.Errorf("a program that was told to end: %v", err)
	}
}
