// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/overlane/overlane/internal/config"
)

const cpuDir = "/sys/devices/system/cpu/"

// onlineCores returns the cores that are online now.
func onlineCores() (config.CPUList, error) { return readCores("online") }

// housekeepingCores returns the online cores that the operator has not set
// apart for something else.
func housekeepingCores() (config.CPUList, error) {
	online, apart, err := onlineAndApart()
	if err != nil {
		return nil, err
	}
	cores := online.Minus(apart)
	if len(cores) == 0 {
		return nil, errors.New("isolcpus and nohz_full set every online core apart: boot with at least one that is not, the kernel sends no receive work to the others")
	}
	return cores, nil
}

// sparedCores returns the cores that are set apart and not used all the same, because the operator has named them.
func sparedCores(used config.CPUList) (config.CPUList, error) {
	_, apart, err := onlineAndApart()
	return apart.Minus(used), err
}

// onlineAndApart returns the cores that are online, and those that boot options have set apart.
func onlineAndApart() (online, apart config.CPUList, err error) {
	online, err = onlineCores()
	isolated, ierr := readCores("isolated")
	tickless, terr := readCores("nohz_full")
	return online, append(isolated, tickless...), cmp.Or(err, ierr, terr)
}

// readCores reads a list of cores; a kernel without the feature has no file.
func readCores(name string) (config.CPUList, error) {
	data, err := os.ReadFile(cpuDir + name)
	if errors.Is(err, fs.ErrNotExist) && name != "online" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read cores: %w", err)
	}
	list, err := parseCores(string(data))
	if err != nil {
		return nil, fmt.Errorf("read %s%s: %w", cpuDir, name, err)
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
