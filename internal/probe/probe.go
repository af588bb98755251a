// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"io/fs"
	"os"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/shell"
)

// Prober asks the running kernel.
type Prober struct{ env env }

// env is the world as the probes see it; tests have their own.
type env struct {
	release string
	version string // how the kernel was built, as in uname -v
	arch    string // as Go names it
	root    fs.FS  // "/"
	types   func() (*btf.Spec, error)
}

// New returns a Prober of the running kernel.
func New() Prober {
	var u unix.Utsname
	unix.Uname(&u) // fails only for a bad pointer
	return Prober{env{
		release: unix.ByteSliceToString(u.Release[:]),
		version: unix.ByteSliceToString(u.Version[:]),
		arch:    runtime.GOARCH,
		root:    os.DirFS("/"),
		types:   btf.LoadKernelSpec,
	}}
}

// answer is what a probe function finds.
type answer struct {
	state  State
	reason string
	remedy shell.Line
}

// probes are the features of the kernel in the order in which people read them.
var probes = []struct {
	id        ID
	minKernel string
	ask       func(env) answer
}{
	{Kernel, minRelease, askKernel},
	{BTF, minRelease, askBTF},
	{KernelRead, minRelease, askKernelRead},
	{TCX, minRelease, askTCX},
	{TracepointBT, minRelease, askTracepoint},
	{RPS, minRelease, askRPS},
	{SoftnetData, minRelease, askSoftnet},
	{OrderGuard, minRelease, askOrderGuard},
	{ThreadedNAPI, minRelease, askThreaded},
	{UDPGRO, minRelease, askUDPGRO},
	{CPUMap, minRelease, askCPUMap},
	{CPUMapGRO, "6.15", askCPUMapGRO},
	{BPFQdisc, "6.16", askBPFQdisc},
}

// All returns every feature of the kernel.
func (p Prober) All() []Feature {
	var all []Feature
	for _, q := range probes {
		all = append(all, p.Feature(q.id))
	}
	return all
}

// Feature returns one feature of the kernel. NativeXDP is a NIC's: see NIC.
func (p Prober) Feature(id ID) Feature {
	for _, q := range probes {
		if q.id == id {
			a := q.ask(p.env)
			return Feature{ID: id, State: a.state, Reason: a.reason, MinKernel: q.minKernel, Remedy: a.remedy}
		}
	}
	return Feature{ID: id, Reason: "no feature of the kernel has this name"}
}

// asRoot is the remedy for everything that only root may ask.
var asRoot = shell.Command("sudo overlane doctor")

// failed turns the error of a probe that does something into an answer.
func failed(err error, missing string, remedy shell.Line) answer {
	switch {
	case errors.Is(err, ebpf.ErrNotSupported):
		return answer{Unsupported, missing, remedy}
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EPERM):
		return answer{Unknown, "not permitted to ask the kernel: " + err.Error(), asRoot}
	}
	return answer{Unknown, "asking the kernel failed: " + err.Error(), shell.Line{}}
}
