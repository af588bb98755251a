// SPDX-License-Identifier: Apache-2.0

// Package foreign tells what else works on the path of an overlay's packets: programs of
// others on its devices, by name, and services that change what overlane goes by. It only reads.
package foreign

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/privilege"
)

// Owner is a product that brings programs of its own.
type Owner string

// Those that are known by their programs' names. The kernel keeps 15 characters of these.
const (
	Unknown Owner = ""
	Cilium  Owner = "Cilium"
	Calico  Owner = "Calico"
	LibXDP  Owner = "libxdp"
)

// names are how the programs of a product begin: Cilium's bpf/bpf_*.c, Calico's
// felix/bpf-gpl/, and the dispatcher of xdp-tools' lib/libxdp.
var names = []struct {
	prefix string
	owner  Owner
}{
	{"cil_", Cilium},
	{"calico_", Calico},
	{"cali_", Calico},
	{"xdp_dispatcher", LibXDP},
}

// OwnerOf tells whose a program of that name is.
func OwnerOf(name string) Owner {
	for _, n := range names {
		if strings.HasPrefix(name, n.prefix) {
			return n.owner
		}
	}
	return Unknown
}

// Dataplane tells whether the owner's tc programs decide where packets go, by what they read
// from and write to them.
func (o Owner) Dataplane() bool { return o == Cilium || o == Calico }

// ProgramName returns the name of a BPF program; empty if there is none, or if it may not be
// read.
func ProgramName(id uint32) string {
	p, err := privilege.Read(unix.CAP_SYS_ADMIN, func() (*ebpf.Program, error) { return ebpf.NewProgramFromID(ebpf.ProgramID(id)) })
	if err != nil {
		return ""
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// Say names a program as people know it.
func Say(id uint32) string {
	name := ProgramName(id)
	switch owner := OwnerOf(name); {
	case name == "":
		return fmt.Sprintf("program %d", id)
	case owner == Unknown:
		return fmt.Sprintf("%s (program %d)", name, id)
	default:
		return fmt.Sprintf("%s of %s (program %d)", name, owner, id)
	}
}
