// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"io/fs"
	"strings"
)

// Service is a program of the machine that changes what overlane goes by, while it runs.
type Service struct {
	Name string `json:"name"`
	PID  string `json:"pid"`
	// Means is what it changes, and what overlane makes of that.
	Means string `json:"means"`
}

// services are known by the name that the kernel has for their processes.
var services = map[string]string{
	"irqbalance": "moves the interrupts of NICs to other cores: flows keep their lanes, and where one of these is on the core that polls now, the pipeline is placed anew, every 30 s at most; cores that irqbalance is to leave alone are named in IRQBALANCE_BANNED_CPULIST",
	"tuned":      "may write RPS masks, ethtool features and net sysctls when a profile is applied: what it writes to a device stays, and that device is left alone until it is as it was",
}

// Services are those that run in the process namespace that proc shows.
func Services(proc fs.FS) []Service {
	var list []Service
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return nil // nothing is known, which a hint may say
	}
	for _, e := range entries {
		if n := e.Name(); n[0] < '1' || n[0] > '9' {
			continue
		}
		comm, err := fs.ReadFile(proc, e.Name()+"/comm")
		if err != nil {
			continue // ended
		}
		name := strings.TrimSpace(string(comm))
		if means, ok := services[name]; ok {
			list = append(list, Service{Name: name, PID: e.Name(), Means: means})
		}
	}
	return list
}
