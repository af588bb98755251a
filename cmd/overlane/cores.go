// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/overlane/overlane/internal/config"
)

// cpus is where the kernel tells of cores.
func cpus() fs.FS { return os.DirFS("/sys/devices/system/cpu") }

// onlineCores returns the cores that are online now.
func onlineCores() (config.CPUList, error) { return readCores(cpus(), "online") }

// housekeepingCores returns the cores that the operator has not set apart for something else, also those that are
// offline or not there: they may come.
func housekeepingCores(sys fs.FS) (config.CPUList, error) {
	present, apart, err := presentAndApart(sys)
	if err != nil {
		return nil, err
	}
	if len(present.Minus(apart)) == 0 {
		return nil, errors.New("isolcpus and nohz_full set every core apart: boot with at least one that is not, the kernel sends no receive work to the others")
	}
	possible, err := readCores(sys, "possible")
	return possible.Minus(apart), err
}

// sparedCores returns the cores that are set apart and not used all the same, because the operator has named them.
func sparedCores(sys fs.FS, used config.CPUList) (config.CPUList, error) {
	_, apart, err := presentAndApart(sys)
	return apart.Minus(used), err
}

// presentAndApart returns the cores that there are, online or not, and those that boot options have set apart.
func presentAndApart(sys fs.FS) (present, apart config.CPUList, err error) {
	present, err = readCores(sys, "present")
	isolated, ierr := readCores(sys, "isolated")
	tickless, terr := readCores(sys, "nohz_full")
	return present, append(isolated, tickless...), cmp.Or(err, ierr, terr)
}

// readCores reads a list of cores; a kernel without the feature has no file.
func readCores(sys fs.FS, name string) (config.CPUList, error) {
	data, err := fs.ReadFile(sys, name)
	if errors.Is(err, fs.ErrNotExist) && !slices.Contains([]string{"possible", "present", "online"}, name) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read cores: %w", err)
	}
	list, err := parseCores(string(data))
	if err != nil {
		return nil, fmt.Errorf("read %s cores: %w", name, err)
	}
	return list, nil
}

// parseCores reads a list as the kernel writes it. A list that does not exist, as that of nohz_full
// without the boot option, is "(null)", padded with blanks to as many characters as there are possible
// CPUs (print_cpus_nohz_full, drivers/base/cpu.c: %*pbl of no mask).
func parseCores(s string) (config.CPUList, error) {
	if s = strings.TrimSpace(s); s == "(null)" {
		return nil, nil
	}
	return config.ParseCPUList(s)
}
