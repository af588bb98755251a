// SPDX-License-Identifier: Apache-2.0

// Command init is the only program of the test machine's root image besides the
// tests: it mounts what they expect, loads modules, runs them and powers off.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/test/patience"
	"github.com/overlane/overlane/test/vm/guest"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: this is the first program of a test machine; nothing else may run it")
		os.Exit(2)
	}
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
	}
	unix.Sync()
	// Returns only on failure, and then the kernel panics: seen by the host.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// work carries out the plan; what fails is on the serial port too.
func work() (err error) {
	if err := mounts(); err != nil {
		return err
	}
	port, err := openPort("/dev/ttyS1")
	if err != nil {
		return err
	}
	defer func() {
		last := guest.Record{Done: err == nil}
		if err != nil {
			last.Error = err.Error()
		}
		err = errors.Join(err, port.put(last), port.drain())
	}()
	var plan guest.Plan
	data, err := os.ReadFile("/" + guest.PlanFile)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &plan); err != nil {
		return fmt.Errorf("read plan: %w", err)
	}
	for _, name := range plan.Modules {
		if err := load(name); err != nil {
			return err
		}
	}
	if err := environment(); err != nil {
		return err
	}
	for _, r := range plan.Runs {
		if err := port.run(r); err != nil {
			return err
		}
	}
	return nil
}

func mounts() error {
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"},
		{"bpf", "/sys/fs/bpf"}, {"tracefs", "/sys/kernel/tracing"}, {"cgroup2", "/sys/fs/cgroup"},
		{"securityfs", "/sys/kernel/security"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		// The kernel may have mounted devtmpfs itself.
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s at %s: %w", m.kind, m.at, err)
		}
	}
	return nil
}

func load(name string) error {
	f, err := os.Open(filepath.Join("/", guest.ModuleDir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load module %s: %w", name, err)
	}
	return nil
}

func environment() error {
	env := map[string]string{"PATH": "/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "USER": "root", patience.Slowness: "12"}
	// There is no compiler that tests could have the product made by.
	for name, file := range guest.Products {
		if _, err := os.Stat("/bin/" + file); err == nil {
			env[name] = "/bin/" + file
		}
	}
	for k, v := range env {
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("set up lo: %w", err)
	}
	return nil
}

// port writes records to the second serial port.
type port struct {
	f *os.File
}

func openPort(path string) (port, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return port{}, fmt.Errorf("open %s: %w", path, err)
	}
	// Raw: a line discipline would turn line ends and tabs into others.
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err == nil {
		t.Oflag &^= unix.OPOST
		t.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
		err = unix.IoctlSetTermios(fd, unix.TCSETS, t)
	}
	if err != nil {
		return port{}, errors.Join(fmt.Errorf("set up %s: %w", path, err), unix.Close(fd))
	}
	return port{os.NewFile(uintptr(fd), path)}, nil
}

func (p port) put(r guest.Record) error { return json.NewEncoder(p.f).Encode(r) }

// drain waits until the last byte has left.
func (p port) drain() error { return unix.IoctlSetInt(int(p.f.Fd()), unix.TCSBRK, 1) }

// run runs one binary. That it fails is a result and no error.
func (p port) run(r guest.Run) error {
	ended := guest.Record{Run: r.Name, Ended: true}
	err := p.start(r)
	var status *exec.ExitError
	switch {
	case errors.As(err, &status):
		ended.Exit, ended.Error = status.ExitCode(), status.String()
	case err != nil:
		ended.Exit, ended.Error = -1, err.Error()
	}
	return p.put(ended)
}

func (p port) start(r guest.Run) error {
	cmd := exec.Command(filepath.Join("/", guest.TestDir, r.Name), r.Args...)
	cmd.Dir = "/tmp"
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			if err := p.put(guest.Record{Run: r.Name, Output: line}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return cmd.Wait()
		}
		if err != nil {
			return errors.Join(err, cmd.Wait())
		}
	}
}
