// SPDX-License-Identifier: Apache-2.0

// Package probe finds out what the kernel and the NICs of this node can do for
// overlane, and what stands in its way.
//
// An answer has three values. Supported and Unsupported are conclusive: the
// kernel was asked in a way that it cannot answer wrongly. Unknown says that it
// could not be asked, and why; nothing may be built on it. Probing changes
// nothing: no device is touched and no module loaded.
package probe

import (
	"slices"

	"github.com/overlane/overlane/internal/shell"
)

// State is the answer to whether there is a feature.
type State uint8

// States of a feature.
const (
	Unknown State = iota
	Supported
	Unsupported
)

func (s State) String() string { return [...]string{"unknown", "supported", "unsupported"}[s] }

// MarshalText makes JSON say the word.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// ID names a feature.
type ID string

// Features of the kernel, and NativeXDP, which each NIC has or has not.
const (
	Kernel       ID = "kernel"        // a release that overlane is tested on
	BTF          ID = "btf"           // type information of the running kernel
	KernelRead   ID = "kernel-read"   // BPF may read the kernel's memory
	TCX          ID = "tcx"           // tc programs on links that end with their process
	TracepointBT ID = "tp_btf"        // typed tracepoint programs
	RPS          ID = "rps"           // receive packet steering
	CPUMap       ID = "cpumap"        // XDP can hand packets to other cores
	CPUMapGRO    ID = "cpumap-gro"    // and GRO works there
	BPFQdisc     ID = "bpf-qdisc"     // queueing disciplines in BPF
	SoftnetData  ID = "softnet-data"  // BPF can read the backlog's positions
	OrderGuard   ID = "order-guard"   // the machine keeps the orders that its proof rests on
	ThreadedNAPI ID = "threaded-napi" // NAPI in threads
	UDPGRO       ID = "udp-gro"       // GRO joins datagrams that are only passed on
	NativeXDP    ID = "native-xdp"    // the NIC's driver runs XDP and can redirect
)

// Feature is one answer.
type Feature struct {
	ID        ID         `json:"id"`
	Device    string     `json:"device,omitempty"` // for NativeXDP
	State     State      `json:"state"`
	Reason    string     `json:"reason"`               // why this is the answer
	MinKernel string     `json:"min_kernel,omitempty"` // the least release for it
	Remedy    shell.Line `json:"remedy,omitzero"`      // one command that would change it
}

// pick returns the answers to a question; there is one per NIC for NativeXDP.
func pick(feats []Feature, id ID) []Feature {
	return slices.DeleteFunc(slices.Clone(feats), func(f Feature) bool { return f.ID != id })
}
