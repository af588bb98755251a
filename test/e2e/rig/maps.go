// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
)

// MapOf opens a map that a process holds.
func MapOf(pid int, name string) (*ebpf.Map, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		info, err := os.ReadFile(file)
		if err != nil {
			continue // closed since
		}
		_, rest, ok := strings.Cut(string(info), "map_id:\t")
		number, _, _ := strings.Cut(rest, "\n")
		id, err := strconv.ParseUint(number, 10, 32)
		if !ok || err != nil {
			continue
		}
		m, err := ebpf.NewMapFromID(ebpf.MapID(id))
		if err != nil {
			return nil, err
		}
		if i, err := m.Info(); err == nil && i.Name == name {
			return m, nil
		}
		m.Close()
	}
	return nil, fmt.Errorf("process %d holds no map %s", pid, name)
}
