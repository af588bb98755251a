// SPDX-License-Identifier: Apache-2.0

// Package docker tests the program beside two real Docker engines: a Swarm overlay network, and
// containers by runc with the mounts that it gives to each.
package docker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/test/e2e/rig"
)

// Engines and containers outlive what started them, and write to places of the machine that cannot
// be configured. So the test binary runs three times. The first is what "go test" started. The
// second, the keeper, has a mount namespace of its own, with empty folders in those places; it
// inherits the processes that engines leave behind, and ends all when the tests, or the first, have
// ended in whatever way. The third runs the tests.
const (
	roleOf   = "OVERLANE_DOCKER_ROLE"
	cgroupOf = "OVERLANE_DOCKER_CGROUP" // the parent of all containers' control groups
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleOf) {
	case "":
		if os.Geteuid() != 0 || lacking() != nil {
			rig.Main(m) // to skip, with the reason
		}
		os.Exit(begin())
	case "keeper":
		os.Exit(keep())
	default:
		rig.Main(m)
	}
}

// lacking tells what is not installed.
func lacking() error {
	for _, program := range []string{"dockerd", "containerd", "runc", "iptables"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("needs %s: apt-get install docker.io", program)
		}
	}
	return nil
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// begin starts the keeper, in a session of its own: it outlives signals to this one's.
func begin() int {
	alive, ours, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleOf+"=keeper")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = alive, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Unshareflags: unix.CLONE_NEWNS}
	if err := cmd.Start(); err != nil {
		return fail(err)
	}
	alive.Close()
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGINT, unix.SIGTERM)
	go func() {
		<-end
		ours.Close()
	}()
	_ = cmd.Wait() // its state is looked at below
	return max(cmd.ProcessState.ExitCode(), 0)
}

// keep runs the tests and ends whatever is left.
func keep() int {
	runtime.LockOSThread() // the tests end with this thread
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fail(fmt.Errorf("inherit processes: %w", err))
	}
	dir, err := os.MkdirTemp("", "oldk")
	if err != nil {
		return fail(err)
	}
	group := "/" + filepath.Base(dir)
	code, err := 1, mounts(dir)
	if err == nil {
		code, err = tests(dir, group)
	}
	err = errors.Join(err, endAll(), removeGroups(group), unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir))
	if err != nil {
		return max(code, fail(err))
	}
	return code
}

// mounts hides the places that engines write to, all of them in memory.
func mounts(dir string) error {
	// Names of other labs' namespaces would be there, and hidden.
	for unix.Unmount("/run/netns", unix.MNT_DETACH) == nil {
	}
	for _, at := range []string{dir, "/run", "/etc/docker"} {
		if err := unix.Mount("docker", at, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount an empty folder at %s: %w", at, err)
		}
	}
	// As it is on nodes, for containers that see what is mounted there later (rslave).
	if err := unix.Mount("", "/run", "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share /run: %w", err)
	}
	// containerd makes a folder in it, and can do without.
	err := unix.Mount("/opt", "/opt", "", unix.MS_BIND, "")
	if err == nil {
		err = unix.Mount("", "/opt", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("make /opt read-only: %w", err)
	}
	return nil
}

// tests runs them, until they end or the first process has.
func tests(dir, group string) (code int, err error) {
	if err := errors.Join(os.Setenv(roleOf, "tests"), os.Setenv(cgroupOf, group), os.Setenv("TMPDIR", dir)); err != nil {
		return 1, err
	}
	p, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Env:   os.Environ(),
		Files: []*os.File{nil, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		return 1, err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = p.Kill()
	}()
	st, err := p.Wait()
	if err != nil {
		return 1, err
	}
	if st.ExitCode() < 0 {
		return 1, errors.New("the tests were ended: " + st.String())
	}
	return st.ExitCode(), nil
}

// endAll ends the processes that descend from this one: children of what has ended are its own.
func endAll() error {
	for {
		for _, pid := range children() {
			_ = unix.Kill(pid, unix.SIGKILL) // not waited for yet: the number is still its own
		}
		switch pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); {
		case errors.Is(err, unix.ECHILD):
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case pid == 0:
			time.Sleep(5 * time.Millisecond) // it may have inherited another meanwhile
		}
	}
}

func children() (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// PID (NAME) STATE PPID
		_, rest, _ := strings.Cut(string(data[bytes.LastIndexByte(data, ')')+1:]), " ")
		fields := strings.Fields(rest)
		if len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// groups finds the control groups of a name in every hierarchy, inner ones first.
func groups(name string) (paths []string, err error) {
	tops, err := filepath.Glob("/sys/fs/cgroup/*" + name)
	if err != nil {
		return nil, err
	}
	for _, top := range append(tops, "/sys/fs/cgroup"+name) {
		err := filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				paths = append(paths, path)
			}
			return nil // one that goes meanwhile is no error
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Reverse(paths)
	return paths, nil
}

func removeGroups(name string) error {
	paths, err := groups(name)
	for _, path := range paths {
		// What has ended leaves its group a moment later.
		for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			e := os.Remove(path)
			if e == nil || os.IsNotExist(e) {
				break
			}
			if time.Since(begin) > rig.Patience {
				err = errors.Join(err, e)
				break
			}
		}
	}
	return err
}
