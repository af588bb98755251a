// SPDX-License-Identifier: Apache-2.0

// Package manycore has machines with more cores than the host: an emulator runs them in guest time, in
// which all cores advance together, however long that takes.
package manycore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/overlane/overlane/test/vm"
	"github.com/overlane/overlane/test/vm/guest"
)

// Machine describes one.
type Machine struct {
	Kernel vm.Line
	CPUs   int
	// Nodes and Threads: NUMA nodes, and siblings of a core (SMT); 0 means 1.
	Nodes, Threads int
	// Rate is how many instructions a core executes in a nanosecond.
	Rate int
	// Quantum is how many instructions a core may be ahead of others.
	Quantum int
	// What it takes a core, in nanoseconds, to execute PAUSE, to send an interrupt to another, and to
	// wake from idling when one comes.
	Pause, Send, Wake int
	// Lines is what it takes to get cache lines of the kernel from other cores.
	Lines Lines
}

// Lines is what cache lines take to come from another core, in instructions: a load of one that the other
// has changed, a load of one that others only have, a store to one that others have. All zero: nothing
// is kept of lines. In instructions, since how many instructions a line is worth was fitted, and is the
// same at each rate.
type Lines struct{ Changed, Clean, Taken int }

// String describes the machine in a line, and names it among others.
func (m Machine) String() string {
	s := fmt.Sprintf("Linux %s · %d vCPUs", m.Kernel, m.CPUs)
	if m.Nodes > 1 || m.Threads > 1 {
		s += fmt.Sprintf(" (%d nodes, %d threads a core)", max(m.Nodes, 1), max(m.Threads, 1))
	}
	s += fmt.Sprintf(" · %d instructions/ns · quantum %d · PAUSE %d, IPI %d, wakeup %d ns", m.Rate, m.Quantum, m.Pause, m.Send, m.Wake)
	if m.Lines == (Lines{}) {
		return s + " · lines move for nothing"
	}
	return s + fmt.Sprintf(" · lines %d, %d and %d instructions", m.Lines.Changed, m.Lines.Clean, m.Lines.Taken)
}

// check refuses what cannot be.
func (m Machine) check() error {
	nodes, threads := max(m.Nodes, 1), max(m.Threads, 1)
	switch {
	case m.CPUs < 1 || m.CPUs > 16:
		return fmt.Errorf("%d vCPUs: 1 to 16 are possible", m.CPUs)
	case m.CPUs%(nodes*threads) != 0:
		return fmt.Errorf("%d vCPUs cannot be shared evenly by %d nodes of cores with %d threads", m.CPUs, nodes, threads)
	case min(m.Lines.Changed, m.Lines.Clean, m.Lines.Taken) < 0:
		return fmt.Errorf("cache lines %v: costs of at least 0 are possible", m.Lines)
	case m.Rate < 1 || m.Quantum < 1 || m.Pause < 0 || m.Send < 0 || m.Wake < 0:
		return fmt.Errorf("rate %d, quantum %d, costs %d, %d and %d: a rate and a quantum of at least 1, and costs of at least 0 are possible", m.Rate, m.Quantum, m.Pause, m.Send, m.Wake)
	}
	return nil
}

// environment tells the emulator how time goes by.
func (m Machine) environment() []string {
	var env []string
	for _, v := range []struct {
		name  string
		value int
	}{
		{"QUANTUM", m.Quantum}, {"RATE", m.Rate}, {"PAUSE", m.Pause * m.Rate}, {"IPI_SEND", m.Send * m.Rate}, {"IPI_WAKE", m.Wake * m.Rate},
	} {
		env = append(env, "MANYCORE_"+v.name+"="+strconv.Itoa(v.value))
	}
	return env
}

// topology is what -smp and -numa say of nodes and siblings.
func (m Machine) topology() (smp string, numa []string) {
	nodes, threads := max(m.Nodes, 1), max(m.Threads, 1)
	smp = fmt.Sprintf(",sockets=%d,cores=%d,threads=%d", nodes, m.CPUs/nodes/threads, threads)
	if nodes == 1 {
		return smp, nil
	}
	for n := range nodes {
		first := n * m.CPUs / nodes
		numa = append(numa,
			"-object", fmt.Sprintf("memory-backend-ram,id=m%d,size=%dM", n, 2048/nodes),
			"-numa", fmt.Sprintf("node,nodeid=%d,cpus=%d-%d,memdev=m%d", n, first, first+m.CPUs/nodes-1, n))
	}
	return smp, numa
}

// plugin is what -plugin says of cache lines.
func (m Machine) plugin(e *Emulator) []string {
	if m.Lines == (Lines{}) {
		return nil
	}
	return []string{"-plugin", fmt.Sprintf("%s,changed=%d,clean=%d,taken=%d", e.lines(), m.Lines.Changed, m.Lines.Clean, m.Lines.Taken)}
}

// features: with MWAIT the emulator spins where there are several vCPUs, and a "rep movs" by bytes
// counts an instruction for each.
const features = ",-erms,-monitor,-invpcid,-tsc-deadline,+invtsc"

// options of the kernel. It is told how fast its clock is, a tick for each nanosecond, and to trust it.
// Pages are not cleared when they are handed out: real cores do that many times faster than by words.
const options = "quiet nokaslr tsc=reliable clocksource=tsc tsc_early_khz=1000000 nowatchdog " +
	"random.trust_bootloader=on rcupdate.rcu_expedited=1 init_on_alloc=0"

// What the lab needs of modules and programs.
var (
	modules = []string{
		"vxlan", "geneve", "veth", "bridge", "br_netfilter", "tun", "dummy", "sch_fq", "sch_tbf", "sch_ingress", "cls_bpf", "act_mirred",
		"nf_tables", "nft_chain_nat", "iptable_filter", "xt_mark", "xt_conntrack", "xfrm_user",
	}
	programs = []string{"ip", "iperf3"}
)

// Bench has what machines are made of.
type Bench struct {
	Emulator *Emulator
	Kernels  map[vm.Line]*vm.Kernel
	Init     string
	// Programs are files by the names that commands have.
	Programs map[string]string
	// Started are files that commands start themselves, found as /bin/NAME.
	Started []string
}

// Command is a program with its arguments.
type Command struct {
	Name string
	Args []string
}

// Report is what became of a machine.
type Report struct {
	Outcomes []vm.Outcome
	Wall     time.Duration
	// Guest is how long the machine ran by its own time.
	Guest time.Duration
	// Instructions that each core executed.
	Instructions []int64
}

// Run boots a machine and runs commands in it, one after another. What the machine said stays in dir,
// the console also where it fails.
func (b *Bench) Run(ctx context.Context, m Machine, dir string, commands ...Command) (*Report, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	k := b.Kernels[m.Kernel]
	if k == nil {
		return nil, fmt.Errorf("no kernel %s is at hand", m.Kernel)
	}
	smp, numa := m.topology()
	v := &vm.Machine{
		Kernel: k, Dir: dir, Tests: b.Programs, Programs: slices.Concat(programs, b.Started), Init: b.Init, Modules: modules,
		Emulator: vm.Unpacked(b.Emulator.Dir, m.environment()...),
		Devices:  slices.Concat(numa, m.plugin(b.Emulator), []string{"-rtc", "clock=vm,base=2026-01-01"}),
		Boot:     vm.Boot{CPUs: m.CPUs, Topology: smp, Features: features, Options: options, Counted: true},
	}
	for _, c := range commands {
		v.Runs = append(v.Runs, guest.Run{Name: c.Name, Args: c.Args})
	}
	begin := time.Now()
	records, err := v.Start(ctx)
	r := &Report{Wall: time.Since(begin)}
	if err != nil {
		return r, err
	}
	if r.Outcomes, err = vm.Outcomes(records, v.Runs); err != nil {
		return r, fmt.Errorf("%w\n%s", err, v.Tail())
	}
	for _, o := range r.Outcomes {
		if !o.Ended || o.Exit != 0 {
			return r, fmt.Errorf("%s in the machine: %s\n%s", o.Run, o.Error, o.Output)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "emulator.txt"))
	if err != nil {
		return r, err
	}
	return r, r.account(string(text), m)
}

var ofCore = regexp.MustCompile(`(?m)^manycore: vCPU (\d+) clock (\d+) instructions (\d+) `)

// account reads what the emulator says of each core at its end.
func (r *Report) account(text string, m Machine) error {
	for _, f := range ofCore.FindAllStringSubmatch(text, -1) {
		clock, _ := strconv.ParseInt(f[2], 10, 64) // digits by the expression
		done, _ := strconv.ParseInt(f[3], 10, 64)
		r.Guest = max(r.Guest, time.Duration(clock/int64(m.Rate)))
		r.Instructions = append(r.Instructions, done)
	}
	if len(r.Instructions) != m.CPUs {
		return fmt.Errorf("the emulator tells of %d cores and not of %d:\n%s", len(r.Instructions), m.CPUs, text)
	}
	return nil
}

// Cost says what the run took.
func (r *Report) Cost() string {
	var sum int64
	for _, n := range r.Instructions {
		sum += n
	}
	return fmt.Sprintf("%.1f s of guest time in %.0f s: %.0f million instructions a second", r.Guest.Seconds(), r.Wall.Seconds(), float64(sum)/1e6/r.Wall.Seconds())
}

// KernelOf finds one of the kernels that machines may boot by its line's name.
func KernelOf(name string) (vm.Line, error) {
	i := slices.IndexFunc(vm.Lines, func(l vm.Line) bool { return l.String() == name })
	if i < 0 {
		var known []string
		for _, l := range vm.Lines {
			known = append(known, l.String())
		}
		return vm.Line{}, fmt.Errorf("kernel %q: known are %s", name, strings.Join(known, ", "))
	}
	return vm.Lines[i], nil
}
