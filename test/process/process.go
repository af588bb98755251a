// SPDX-License-Identifier: Apache-2.0

// Package process does to processes what a signal only begins, and tells what holds one that does not end.
package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/test/patience"
)

// Stop stops a process and returns when all of its threads stand still. The kernel gives SIGSTOP to
// one thread, and that one stops the others: until it has run, which on a busy machine may take a
// while, the others go on.
func Stop(pid int) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	for deadline := time.Now().Add(patience.For(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		running, err := moves(pid)
		if err != nil || running == "" {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("stop process %d: a thread goes on: %s", pid, running)
		}
	}
}

// moves returns the state of a thread that does not stand still, empty if all do.
func moves(pid int) (string, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return "", err
	}
	if len(tasks) == 0 {
		return "", fmt.Errorf("stop process %d: it has ended", pid)
	}
	for _, task := range tasks {
		stat, err := os.ReadFile(task)
		if err != nil {
			continue // a thread that has ended
		}
		// PID (NAME) STATE ...
		if after := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]); len(after) == 0 || string(after[0]) != "T" {
			return string(stat), nil
		}
	}
	return "", nil
}

// Where tells of each thread of the processes with a word in their command line where it stands: its
// state, and as root its stack in the kernel.
func Where(word string) string {
	var b strings.Builder
	cmdlines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range cmdlines {
		cmdline, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(cmdline, []byte(word)) {
			continue
		}
		fmt.Fprintf(&b, "%s: %s\n", filepath.Dir(file), bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '}))
		tasks, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "task", "*"))
		for _, task := range tasks {
			stat, _ := os.ReadFile(filepath.Join(task, "stat"))
			stack, _ := os.ReadFile(filepath.Join(task, "stack"))
			fmt.Fprintf(&b, "%s%s", stat, stack)
		}
	}
	return b.String()
}
