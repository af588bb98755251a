// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/overlane/overlane/test/vm/guest"
)

// Machine is one boot of one kernel.
type Machine struct {
	Kernel *Kernel
	// Dir gets the root image, and what the serial ports and the emulator said.
	Dir string
	// Tests are the files of the binaries that the plan runs, by name.
	Tests map[string]string
	// Programs are files that the tests run, found as /bin/NAME. A program that
	// is not static brings its libraries.
	Programs []string
	// Files are found where they are here, such as plug-ins of programs.
	Files   []string
	Init    string
	Modules []string
	Runs    []guest.Run
	// Emulator is what runs the machine; the zero value is the installed one.
	Emulator Emulator
	// Devices are further arguments of the emulator, and Handed what these call descriptors 3, 4 and
	// so on.
	Devices []string
	Handed  []*os.File
	Boot
}

// Boot is how a machine is started.
type Boot struct {
	Name string // empty: the usual way
	CPUs int
	// Topology and Features are what the emulator is told of the cores beside that, as of -smp and
	// -cpu.
	Topology, Features string
	// Options of the kernel, beside those that all machines have.
	Options string
	// Counted has time go by instructions, a nanosecond each.
	Counted bool
}

// Start runs the machine to its end. The error says that the machine did not
// come to the end of its plan, and shows the end of its console.
func (m *Machine) Start(ctx context.Context) (records string, err error) {
	image := filepath.Join(m.Dir, "root.cpio")
	if err := m.pack(image); err != nil {
		return "", fmt.Errorf("pack root image: %w", err)
	}
	console, results := filepath.Join(m.Dir, "console.txt"), filepath.Join(m.Dir, "results.txt")
	args := []string{
		// With a thread for each core, a core may run into the breakpoint of a
		// static key that another one has patched away meanwhile: an oops in
		// int3.
		"-accel", "tcg,thread=single", "-smp", strconv.Itoa(m.CPUs) + m.Topology, "-m", "2G",
		"-cpu", "Haswell-noTSX,-pcid" + m.Features,
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-serial", "file:" + console, "-serial", "file:" + results,
		"-kernel", m.Kernel.Image, "-initrd", image,
		// A kernel that oopses must not go on as if nothing was. What it does against flaws of real
		// cores costs an emulated one most of its time: each entry into the kernel empties its TLB.
		// On a busy machine its timer may miss the ticks that the check of it wants, which ends in a panic.
		"-append", "console=ttyS0 panic=-1 oops=panic mitigations=off no_timer_check " + m.Options,
	}
	if m.Counted {
		args = append(args, "-icount", "shift=0,sleep=off")
	}
	cmd := m.Emulator.command(ctx, append(args, m.Devices...)...)
	cmd.ExtraFiles = m.Handed
	out, err := run(cmd)
	err = errors.Join(err, os.WriteFile(filepath.Join(m.Dir, "emulator.txt"), []byte(out), 0o644))
	said := tail(console, 60)
	records, readErr := read(results)
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("%s did not end: %w\n%s", m.Kernel.Release, context.Cause(ctx), said)
	case err != nil:
		err = fmt.Errorf("%s: %w\n%s", cmd.Path, err, out)
	case readErr != nil:
		err = readErr
	default:
		err = m.sane(console)
	}
	return records, err
}

// run starts the emulator on a thread that lives as long: it ends with this
// process, however that ends.
func run(cmd *exec.Cmd) (string, error) {
	type result struct {
		out string
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		done <- result{string(out), err}
	}()
	r := <-done
	return r.out, r.err
}

// complaint is what a kernel says when it finds a fault in itself. The line of a
// WARN begins with the core in 6.12 and has it at its end in 7.2.
var complaint = regexp.MustCompile(`(?m)^.*(BUG: |WARNING: CPU: \d|WARNING: .*, CPU#\d|Kernel panic|Oops: |general protection fault|possible recursive locking|soft lockup).*$`)

// ofTheEmulator is where a kernel finds itself traced step by step without a tracer: now and then the
// emulator has flags set that are part of an address, behind a cmpxchg16b.
const ofTheEmulator = "exc_debug_kernel+"

func (m *Machine) sane(console string) error {
	data, err := os.ReadFile(console)
	if err != nil {
		return err
	}
	for _, at := range complaint.FindAllIndex(data, -1) {
		if from := at[0]; !bytes.Contains(data[from:at[1]], []byte(ofTheEmulator)) {
			return fmt.Errorf("kernel %s complains:\n%s", m.Kernel.Release, data[from:min(from+4000, len(data))])
		}
	}
	return nil
}

// Tail is the end of the kernel's console.
func (m *Machine) Tail() string { return tail(filepath.Join(m.Dir, "console.txt"), 60) }

func tail(path string, lines int) string {
	text, err := read(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// read reads what came out of a serial port.
func read(path string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return strings.ReplaceAll(string(data), "\r\n", "\n"), err
}
