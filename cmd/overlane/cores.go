// SPDX-License-Identifier: Apache-2.0

package main

import (
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
	cores, err := onlineCores()
	if err != nil {
		return nil, err
	}
	apart, err := coresApart()
	if err != nil {
		return nil, err
	}
	if cores = cores.Minus(apart); len(cores) == 0 {
		return nil, errors.New("isolcpus and nohz_full set every online core apart: boot with at least one that is not, the kernel sends no receive work to the others")
	}
	return cores, nil
}

// coresApart returns the cores that boot options have set apart.
func coresApart() (config.CPUList, error) {
	var all config.CPUList
	for _, name := range []string{"isolated", "nohz_full"} {
		apart, err := readCores(name)
		if err != nil {
			return nil, err
		}
		all = append(all, apart...)
	}
	return all, nil
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
