// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/governor"
)

// topology is how the cores are wired, as far as the kernel tells: a machine that has no such files is
// taken for one whose cores are all alike.
func topology() governor.Topology { return topologyAt(os.DirFS("/sys/devices/system")) }

func topologyAt(sys fs.FS) governor.Topology {
	t := governor.Topology{Node: map[int]int{}, Cache: map[int]int{}, Siblings: map[int][]int{}}
	nodes, _ := fs.Glob(sys, "node/node[0-9]*/cpulist")
	for _, name := range nodes {
		node, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(name, "node/node"), "/cpulist"))
		if err != nil {
			continue
		}
		for _, core := range coresIn(sys, name) {
			t.Node[core] = node
		}
	}
	cpus, _ := fs.Glob(sys, "cpu/cpu[0-9]*")
	for _, dir := range cpus {
		core, err := strconv.Atoi(strings.TrimPrefix(dir, "cpu/cpu"))
		if err != nil {
			continue
		}
		for _, other := range coresIn(sys, dir+"/topology/thread_siblings_list") {
			if other != core {
				t.Siblings[core] = append(t.Siblings[core], other)
			}
		}
		// Caches have the higher an index the further they are from the core.
		caches, _ := fs.Glob(sys, dir+"/cache/index[0-9]*/shared_cpu_list")
		if len(caches) > 0 {
			if shared := coresIn(sys, slices.Max(caches)); len(shared) > 0 {
				t.Cache[core] = shared[0]
			}
		}
	}
	return t
}

func coresIn(sys fs.FS, name string) config.CPUList {
	text, _ := fs.ReadFile(sys, name)
	list, _ := parseCores(string(text))
	return list
}

// cpuManagerState is where the kubelet with a static CPU manager writes which cores its containers have
// for themselves (pkg/kubelet/cm/cpumanager/state: one checksummed JSON text with "entries", by pod and
// container).
const cpuManagerState = "var/lib/kubelet/cpu_manager_state"

// exclusiveCores are the cores that containers have for themselves on a node, sorted.
func exclusiveCores(root fs.FS) ([]int, error) {
	text, err := fs.ReadFile(root, cpuManagerState)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read cores of containers: %w", err)
	}
	var state struct {
		Entries map[string]map[string]string `json:"entries"`
	}
	if err := json.Unmarshal(text, &state); err != nil {
		return nil, fmt.Errorf("read cores of containers: /%s: %w", cpuManagerState, err)
	}
	var all []int
	for _, containers := range state.Entries {
		for _, cores := range containers {
			list, err := config.ParseCPUList(cores)
			if err != nil {
				return nil, fmt.Errorf("read cores of containers: /%s: %w", cpuManagerState, err)
			}
			all = append(all, list...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
