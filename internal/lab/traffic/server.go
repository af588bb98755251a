// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"strings"
	"time"
)

// ServerConfig says how a server of a lab runs.
type ServerConfig struct {
	Cores []int
	// Urgent servers run when they are due, like the lab's probes: for rates
	// that leave most of a core to others.
	Urgent bool
	// Dir is an empty directory for what the server needs.
	Dir string
}

// Server is a program that answers requests until it is told to end.
type Server struct {
	proc *Process
}

func (cfg *ServerConfig) program(at Endpoint) program {
	p := program{ns: at.NS, cores: cfg.Cores}
	if cfg.Urgent {
		p.policy = urgent
	}
	return p
}

// Stop ends the server.
func (s *Server) Stop() error { return s.proc.Stop(ends) }

// Flood is a load generator of the field that asks as fast as it is answered.
type Flood struct {
	Clients int
	Length  time.Duration // in whole seconds
	Core    int
}

func (f *Flood) seconds() int { return int((f.Length + time.Second - 1) / time.Second) }

// host writes an address as it stands before a port.
func host(at Endpoint) string {
	if s := at.Addr.String(); strings.Contains(s, ":") {
		return "[" + s + "]"
	}
	return at.Addr.String()
}
