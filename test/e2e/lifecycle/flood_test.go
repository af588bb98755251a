// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// floodVar makes this binary the flood.
const floodVar = "OVERLANE_TEST_FLOOD"

const (
	idlers   = 15_000
	scrapers = 3000
)

// flood holds idle connections to the metrics port and scrapes it without an end, until its input ends.
func flood() error {
	addr := net.TCPAddrFromAddrPort(rig.Metrics)
	to := &unix.SockaddrInet4{Port: addr.Port, Addr: [4]byte(addr.IP.To4())}
	for range idlers {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_ = unix.Connect(fd, to) // whether it comes in is the daemon's matter
	}
	for range scrapers {
		go func() {
			for {
				scrape(addr)
			}
		}()
	}
	fmt.Println("on")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func scrape(addr *net.TCPAddr) {
	const long = 5 * time.Second
	c, err := net.DialTimeout("tcp", addr.String(), long)
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(long))
	fmt.Fprint(c, "GET /metrics HTTP/1.1\r\nHost: overlane\r\n\r\n")
	_, _ = io.Copy(io.Discard, c)
}

// startFlood starts it as an ordinary user beside the daemon, and returns how to end it.
func startFlood(t *testing.T, d *rig.Daemon) (stop func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), floodVar+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, d.NS.Do(cmd.Start))
	stop = func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the flood: %v", err)
		}
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "on\n" {
		stop()
		t.Fatalf("the flood did not begin: %q, %v", line, err)
	}
	return stop
}

// A local user that floods the metrics port takes nothing of the daemon by which a policy is noticed: frames
// cease to pass one by, and descriptors and memory are as before.
func TestAFloodOfScrapesDelaysNoPolicy(t *testing.T) {
	speed.Long(t)
	b := lab(t, bed.Options{})
	s := &scene{t: t, b: b}
	l := rig.StartSteady(t, b, 2)
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: strings.Replace(expresses, "metrics: off\n", "", 1)})
	onPath(t, d)
	d.Metric("go_goroutines") // what the first scrape takes is taken
	files, memory := len(rig.OpenFiles(t, d.PID)), d.Memory()
	stop := startFlood(t, d)
	mostFiles, mostMemory, took := 0, 0, d.Time()
	for begun := time.Now(); time.Since(begun) < time.Second; time.Sleep(10 * time.Millisecond) {
		mostFiles, mostMemory = max(mostFiles, len(rig.OpenFiles(t, d.PID))), max(mostMemory, d.Memory())
	}
	took = d.Time() - took
	onPath(t, d) // where a policy has to be noticed
	must(t, s.run(atOverlay, fmt.Sprintf(isolated, "on")))
	awaitLeft(t, d, l)
	from := l.Verdict().Received
	passes(t, l, 5000)
	if n := l.Verdict().Received - from; n > 0 {
		t.Errorf("%d datagrams came past isolated ports", n)
	}
	must(t, s.run(atOverlay, fmt.Sprintf(isolated, "off")))
	stop()
	t.Logf("%d descriptors before, %d at most; %d KiB before, %d at most; %s of a second taken", files, mostFiles, memory, mostMemory, took)
	const room = 32 // connections, at once and in the midst of their ends
	if mostFiles > files+room {
		t.Errorf("%d descriptors, %d without the flood", mostFiles, files)
	}
	if mostMemory > memory+8<<10 {
		t.Errorf("%d KiB, %d without the flood", mostMemory, memory)
	}
	ends(t, d)
	l.Stop()
}
