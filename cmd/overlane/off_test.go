// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/plan"
)

// loMask reads the receive mask of a namespace's lo.
func loMask(t *testing.T, h *netns.Handle) string {
	t.Helper()
	return plan.RPSMask(plan.Target{}, 0).Canonical(attribute(t, h, "lo/queues/rx-0/rps_cpus"))
}

// attribute reads one of a device.
func attribute(t *testing.T, h *netns.Handle, name string) string {
	t.Helper()
	sys, err := h.Sysfs()
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	data, err := sys.ReadFile("class/net/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// changeLo is what a daemon does before it is killed: it sets the mask of lo and
// keeps the lock.
func changeLo(t *testing.T, o overlane) *apply.Locked {
	t.Helper()
	cookie, err := o.netns.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	lo := plan.RPSMask(plan.Target{NetnsCookie: cookie, Ifindex: 1, Name: "lo"}, 0)
	locked := change(t, o, plan.Step{Setting: lo, By: plan.ByPipeline, Was: "0", First: "0", Want: "1", Reason: "test"})
	if got := loMask(t, o.netns); got != "1" {
		t.Fatalf("mask of lo: %s", got)
	}
	return locked
}

// change carries out a step as a daemon does, and keeps the lock.
func change(t *testing.T, o overlane, step plan.Step) *apply.Locked {
	t.Helper()
	cookie, err := o.netns.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := apply.Open(o.state, cookie)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	locked, err := dir.Lock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locked.Unlock() })
	finder := apply.NewFinder()
	defer finder.Close()
	if rep, err := locked.Do(finder, []plan.Step{step}); err != nil || rep.Count(apply.Applied) != 1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	return locked
}

// The namespace of a test has no name; it is found as those of processes are.
func holdNetns(t *testing.T, h *netns.Handle) {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
}

func TestOffRestoresFromTheJournalOfADeadDaemon(t *testing.T) {
	o := emptyNode(t)
	holdNetns(t, o.netns)
	if err := changeLo(t, o).Unlock(); err != nil {
		t.Fatal(err)
	}
	r := o.run("off")
	if r.code != cli.ExitOK || !strings.Contains(r.stdout, "rps_cpus of lo") || !strings.HasSuffix(r.stdout, "off: 1 value restored\n") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if got := loMask(t, o.netns); got != "0" {
		t.Errorf("mask of lo: %s", got)
	}
	if r = o.run("off"); r.code != cli.ExitOK || !strings.Contains(r.stdout, "nothing to do") {
		t.Errorf("again: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// What systemd runs when its daemon has ended, or could not start, restores as much, and beside another daemon nothing.
func TestOffLeftIsAboutDeadDaemonsOnly(t *testing.T) {
	o := emptyNode(t)
	holdNetns(t, o.netns)
	if r := o.run("off", "--left"); r.code != cli.ExitOK {
		t.Errorf("where nothing ever ran: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	o.untouched()
	locked := changeLo(t, o)
	if r := o.run("off", "--left"); r.code != cli.ExitOK || loMask(t, o.netns) != "1" {
		t.Errorf("beside another daemon: exit code %d, mask of lo %s\n%s%s", r.code, loMask(t, o.netns), r.stdout, r.stderr)
	}
	if err := locked.Unlock(); err != nil {
		t.Fatal(err)
	}
	if r := o.run("off", "--left"); r.code != cli.ExitOK || !strings.HasSuffix(r.stdout, "off: 1 value restored\n") || loMask(t, o.netns) != "0" {
		t.Errorf("of a dead daemon: exit code %d, mask of lo %s\n%s%s", r.code, loMask(t, o.netns), r.stdout, r.stderr)
	}
}

// Between the start of a daemon and its socket, and between its socket's end
// and its own, the lock is held and no daemon answers: off waits.
func TestOffWaitsForALockWithoutASocket(t *testing.T) {
	o := emptyNode(t)
	holdNetns(t, o.netns)
	locked := changeLo(t, o)
	locks, err := filepath.Glob(o.state + "/*/lock")
	if err != nil || len(locks) != 1 {
		t.Fatalf("%v, %v", locks, err)
	}
	notes, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(notes)
	if _, err := unix.InotifyAddWatch(notes, locks[0], unix.IN_CLOSE_WRITE); err != nil {
		t.Fatal(err)
	}
	tries := make(chan error, 2)
	go func() {
		for range cap(tries) { // it has tried the lock, in vain
			_, err := unix.Read(notes, make([]byte, unix.SizeofInotifyEvent))
			tries <- err
		}
	}()
	done := make(chan result, 1)
	go func() { done <- o.run("off") }()
	for range cap(tries) { // it tries again: it waits
		select {
		case err := <-tries:
			if err != nil {
				t.Fatal(err)
			}
		case r := <-done:
			t.Fatalf("off does not wait: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
		}
	}
	if err := locked.Unlock(); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.code != cli.ExitOK || loMask(t, o.netns) != "0" {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// startDaemon runs `overlane run` and returns when it says that it is ready.
func startDaemon(t *testing.T, o overlane) *exec.Cmd {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "n")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: ready, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "run", "--state-dir", o.state, "--config", configFile(t, "metrics: off"))
	cmd.Env = append(os.Environ(), mainVar+"=1", "NOTIFY_SOCKET="+ready)
	logs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := o.netns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	go func() {
		data, _ := io.ReadAll(logs)
		l.Close() // a process that still waits has waited in vain
		said <- string(data)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		text := <-said
		_ = cmd.Wait()
		if t.Failed() {
			t.Log("daemon:\n" + text)
		}
	})
	b := make([]byte, 64)
	if n, err := l.Read(b); err != nil || !strings.HasPrefix(string(b[:n]), "READY=1") {
		t.Fatalf("the daemon did not get ready: %q, %v", b[:n], err)
	}
	return cmd
}

func TestOffEndsALivingDaemon(t *testing.T) {
	if unfit := (overlane{t: t}).run("doctor"); unfit.code == cli.ExitUnsupported {
		t.Skip("needs a kernel that the pipeline can run on: " + unfit.stderr)
	}
	o := emptyNode(t)
	daemon := startDaemon(t, o)
	if r := o.run("status"); r.code != cli.ExitOK || !strings.Contains(r.stdout, "running") {
		t.Errorf("status: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := o.run("status", "--json"); r.code != cli.ExitOK || !strings.Contains(r.stdout, `"state": "running"`) {
		t.Errorf("status: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	} else {
		for _, cost := range typed(t, "status", r.stdout)["stage_costs"].([]any) {
			if ns, there := cost.(map[string]any)["ns_per_packet"]; !there || ns != nil {
				t.Errorf("without a packet a stage costs %v", cost)
			}
		}
	}
	second := o.run("run", "--config", configFile(t, "metrics: off"))
	second.fails(t, cli.ExitFailure, "owns this network namespace")
	// What systemd runs once that has failed.
	if r := o.run("off", "--left"); r.code != cli.ExitOK || !strings.Contains(r.stderr, "it goes on") {
		t.Errorf("off --left: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := o.run("status"); r.code != cli.ExitOK {
		t.Errorf("status after off --left: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	elsewhere := overlane{t: t, netns: o.netns, state: t.TempDir()}
	for _, verb := range []string{"run", "off"} {
		elsewhere.run(verb).fails(t, cli.ExitFailure, "with another state directory")
	}
	r := o.run("off")
	if r.code != cli.ExitOK || !strings.Contains(r.stdout, "has ended; no value was changed") {
		t.Errorf("off: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	// Not a child's status but a zombie's: off has waited for the end.
	var exit *exec.ExitError
	if err := daemon.Wait(); errors.As(err, &exit) {
		t.Errorf("the daemon would be revived: %v", exit)
	}
	if r := o.run("status"); r.code != cli.ExitFailure {
		t.Errorf("status after off: exit code %d", r.code)
	}
}

// The NIC of this node is down: its driver has no NAPI then, and the kernel takes no other value of threaded.
func TestWhatCannotBeRestoredKeepsNoDaemonFromStartingAndEnding(t *testing.T) {
	if unfit := (overlane{t: t}).run("doctor"); unfit.code == cli.ExitUnsupported {
		t.Skip("needs a kernel that the pipeline can run on: " + unfit.stderr)
	}
	o := emptyNode(t)
	holdNetns(t, o.netns)
	cookie, err := o.netns.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	var nic int
	link := func(fn func(netlink.Link) error) {
		t.Helper()
		if err := o.netns.Do(func() error {
			l, err := netlink.LinkByName("nic0")
			if err != nil {
				return err
			}
			nic = l.Attrs().Index
			return fn(l)
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.netns.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "nic0"}, PeerName: "wire"})
	}); err != nil {
		t.Fatal(err)
	}
	link(func(netlink.Link) error { return ethtool.SetFeature("nic0", "rx-gro", true) })
	link(netlink.LinkSetUp)
	threaded := plan.Threaded(plan.Target{NetnsCookie: cookie, Ifindex: nic, Name: "nic0"})
	if err := change(t, o, plan.Step{Setting: threaded, By: plan.ByPriority, Was: "0", First: "0", Want: "1"}).Unlock(); err != nil {
		t.Fatal(err)
	}
	link(netlink.LinkSetDown)

	const kept = "threaded of nic0"
	ended := func(daemon *exec.Cmd) {
		t.Helper()
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/ns/net", daemon.Process.Pid)); err == nil {
			t.Fatal("off came back before the daemon had ended")
		}
		if err := daemon.Wait(); err != nil {
			t.Errorf("the daemon would be revived: %v", err)
		}
	}
	daemon := startDaemon(t, o)
	if r := o.run("status"); r.code != cli.ExitOK || !strings.Contains(r.stdout, kept) || !strings.Contains(r.stdout, "could not be undone") {
		t.Errorf("status: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	// It is named once, with what mends it.
	named := func(r result) {
		t.Helper()
		if r.code != cli.ExitFailure || strings.Count(r.stdout+r.stderr, kept) != 1 || strings.Count(r.stderr, "then run overlane off again") != 1 {
			t.Errorf("off: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
		}
	}
	named(o.run("off"))
	ended(daemon)
	named(o.run("off")) // without a daemon

	// Nor does a journal that cannot be written.
	daemon = startDaemon(t, o)
	inTheWay := filepath.Join(o.state, fmt.Sprint(cookie), "journal.new")
	if err := os.Mkdir(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	if r := o.run("off"); r.code != cli.ExitFailure || !strings.Contains(r.stderr, "journal") || strings.Contains(r.stderr, "could not restore everything") {
		t.Errorf("off: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	ended(daemon)
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}

	// Off, or the guardian before it.
	link(netlink.LinkSetUp)
	if r := o.run("off"); r.code != cli.ExitOK {
		t.Errorf("off: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if got := attribute(t, o.netns, "nic0/threaded"); got != "0" {
		t.Errorf("threaded is %s", got)
	}
}
