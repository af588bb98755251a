// SPDX-License-Identifier: Apache-2.0

package traffic

import "time"

// ServerConfig says how a server of a lab runs.
type ServerConfig struct {
	Cores []int
	// Urgent servers run when they are due, like the lab's probes: for rates
	// that leave most of a core to others.
	Urgent bool
	// Dir is an empty directory for what the server needs.
	Dir string
}

func (cfg *ServerConfig) program(at Endpoint) program {
	p := program{ns: at.NS, cores: cfg.Cores}
	if cfg.Urgent {
		p.policy = urgent
	}
	return p
}

// Flood is a load generator of the field that asks as fast as it is answered.
type Flood struct {
	Clients int
	Length  time.Duration // in whole seconds
	Core    int
}

// wholeSeconds is a length for programs that know no other, rounded up.
func wholeSeconds(length time.Duration) int { return int((length + time.Second - 1) / time.Second) }

// host writes an address as it stands before a port.
func host(at Endpoint) string {
	if at.Addr.Is6() {
		return "[" + at.Addr.String() + "]"
	}
	return at.Addr.String()
}
