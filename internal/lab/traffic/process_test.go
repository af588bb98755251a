// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/netns"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const childEnv = "LAB_TEST_START_PROCESS"

// The test binary plays the lab: it starts a program and says which processes
// that are.
func TestMain(m *testing.M) {
	program := os.Getenv(childEnv)
	if program == "" {
		os.Exit(m.Run())
	}
	p, err := startForTest(program)
	if err == nil {
		pids := []int{p.PID()}
		if program == "nginx" {
			pids = append(pids, workers(p.PID())...)
		}
		fmt.Println(strings.Trim(fmt.Sprint(pids), "[]"))
		<-p.Done()
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func startForTest(program string) (*Process, error) {
	at, err := newLoopback()
	if err != nil {
		return nil, err
	}
	switch program {
	case "memcached":
		return StartMemcached(context.Background(), at, at, ServerConfig{})
	case "nginx":
		return StartNginx(context.Background(), at, ServerConfig{Cores: []int{0, 0}, Dir: os.Getenv(childEnv + "_DIR")})
	}
	return StartProcess(at.NS, nil, program, "100")
}

// workers awaits the two of an nginx.
func workers(pid int) (pids []int) {
	for ; len(pids) < 2; runtime.Gosched() {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		pids = nil
		for _, s := range strings.Fields(string(data)) {
			child, _ := strconv.Atoi(s)
			pids = append(pids, child)
		}
	}
	return pids
}

// newLoopback is a namespace of its own with nothing but that.
func newLoopback() (Endpoint, error) {
	ns, err := netns.New()
	if err != nil {
		return Endpoint{}, err
	}
	nl, err := netlink.NewHandleAt(vnetns.NsHandle(ns.FD()))
	if err != nil {
		return Endpoint{}, err
	}
	defer nl.Close()
	lo, err := nl.LinkByName("lo")
	if err == nil {
		err = nl.LinkSetUp(lo)
	}
	return Endpoint{NS: ns, Addr: netip.MustParseAddr("127.0.0.1")}, err
}

func TestProgramsDoNotOutliveTheLab(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: enters a network namespace")
	}
	for _, program := range []string{"sleep", "memcached", "nginx"} {
		t.Run(program, func(t *testing.T) {
			if err := Installed(program); err != nil {
				t.Skip(err)
			}
			killLab(t, program)
		})
	}
}

func killLab(t *testing.T, program string) {
	lab := exec.Command(os.Args[0])
	lab.Env = append(os.Environ(), childEnv+"="+program, childEnv+"_DIR="+t.TempDir())
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
	var fds []int
	for _, word := range strings.Fields(line) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		// A descriptor of the process itself: its number may be given away again.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	if err := lab.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = lab.Wait()
	for i, fd := range fds {
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 15000); n != 1 {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			t.Errorf("process %d of %d of a killed lab goes on (%v)", i+1, len(fds), err)
		}
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
