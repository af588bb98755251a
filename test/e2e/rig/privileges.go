// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Privileges are what a thread may do, in the kernel's own words.
type Privileges struct {
	Inheritable, Permitted, Effective, Bounding, Ambient uint64
	NoNewPrivs                                           uint64
}

func (p Privileges) String() string {
	return fmt.Sprintf("inheritable %x permitted %x effective %x bounding %x ambient %x no_new_privs %d",
		p.Inheritable, p.Permitted, p.Effective, p.Bounding, p.Ambient, p.NoNewPrivs)
}

// PrivilegesOf reads what each thread of a process may do.
func PrivilegesOf(tb testing.TB, pid int) (list []Privileges) {
	tb.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for _, file := range files {
		p, err := privileges(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			tb.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) == 0 {
		tb.Fatalf("process %d has no threads", pid)
	}
	return list
}

func privileges(file string) (p Privileges, err error) {
	f, err := os.Open(file)
	if err != nil {
		return p, err
	}
	defer f.Close()
	found := 0
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		to := map[string]*uint64{
			"CapInh": &p.Inheritable, "CapPrm": &p.Permitted, "CapEff": &p.Effective,
			"CapBnd": &p.Bounding, "CapAmb": &p.Ambient, "NoNewPrivs": &p.NoNewPrivs,
		}[key]
		if to == nil {
			continue
		}
		if *to, err = strconv.ParseUint(strings.TrimSpace(value), 16, 64); err != nil {
			return p, fmt.Errorf("%s: %w", file, err)
		}
		found++
	}
	if err := lines.Err(); err != nil {
		return p, err
	}
	if found != 6 {
		return p, fmt.Errorf("%s tells %d of 6 privileges", file, found)
	}
	return p, nil
}
