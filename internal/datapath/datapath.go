// SPDX-License-Identifier: Apache-2.0

// Package datapath loads the BPF side, attaches it and reads and writes its
// maps with types. It is the only user of the link APIs: every attachment is
// an unpinned bpf_link, so that the kernel removes it with the process, and with
// the Holder of that, which drains what was under way.
package datapath

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/overlane/overlane/internal/netns"
)

// Device is where a program goes: an interface of a namespace.
type Device struct {
	Netns   *netns.Handle
	Ifindex int
}

// Datapath is the loaded BPF side. Its methods are not safe for concurrent use.
type Datapath struct {
	stages   stagesObjects
	branches branchesObjects // once needed
	trace    traceObjects
	xdp      underlayObjects // once needed
	cpus     int
	key      [16]byte // of the flow hash

	polls  link.Link   // what traces polls, while it does
	tracer []link.Link // the rest, until Close
	sample sampler

	laneThreads      map[laneThread]bool
	lanesWatched     bool
	redirectsWatched bool

	policy stagesOlPolicy
	cells  map[stagesOlCellKey]uint32

	express expressPaths

	holder Holder // nil: none

	meanwhile func(loaded <-chan struct{}) // nil: nothing is to be done

	programs map[uint32]bool      // all that were loaded, also those that are gone
	shared   map[string]*ebpf.Map // by name: of the objects that stay until Close
}

// MaxCPUs is how many possible CPUs the machine may have.
const MaxCPUs = int(stagesOlLimitOL_MAX_CPUS)

// Load puts programs and maps into the kernel and starts the tracing that the
// order guard reads. Nothing is attached to a device yet. What only some mechanisms
// use is loaded with the first of them. Tasks on spared cores are not sampled.
func Load(spared ...int) (*Datapath, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count CPUs: %w", err)
	}
	if cpus > MaxCPUs {
		return nil, fmt.Errorf("%d possible CPUs, and at most %d are supported", cpus, MaxCPUs)
	}
	d := &Datapath{
		cpus:   cpus,
		cells:  map[stagesOlCellKey]uint32{},
		sample: sampler{spared: spared},

		laneThreads: map[laneThread]bool{},
		programs:    map[uint32]bool{},
		shared:      map[string]*ebpf.Map{},
		express:     expressPaths{paths: map[ExpressKey]underlayOlExpressEntry{}, ports: map[CellDevice]uint32{}, fixed: map[Sender]netip.Addr{}},
	}
	if err := d.load(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Datapath) load() error {
	if _, err := rand.Read(d.key[:]); err != nil {
		return fmt.Errorf("make flow hash key: %w", err)
	}
	if err := d.loadObject("tcx programs", loadStages, &d.stages, untilClose); err != nil {
		return err
	}
	if err := d.loadObject("tracing programs", loadTrace, &d.trace, untilClose); err != nil {
		return err
	}
	if err := d.writePolicy(); err != nil {
		return err
	}
	if err := d.Watch(true); err != nil {
		return err
	}
	if err := d.watchCores(); err != nil {
		return err
	}
	return d.startSampling()
}

// needBranches loads the programs of micro-flows, at which the verifier looks for longer than at all
// that every mechanism needs; so it does with the XDP program.
func (d *Datapath) needBranches() error {
	b := &d.branches
	if b.OlUnderlaySplit != nil {
		return nil
	}
	return d.loadObject("tcx programs of micro-flows", loadBranches, b, untilClose)
}

// needXDP loads the XDP program, and with it what finds lanes, and the paths straight to pods.
func (d *Datapath) needXDP() error {
	if d.xdp.OlUnderlayXdp != nil {
		return nil
	}
	return d.loadObject("XDP program", loadUnderlay, &d.xdp, untilClose)
}

// How long an object stays: those after one that does until Close use its maps.
const (
	forAWhile  = false
	untilClose = true
)

// loadObject puts the programs of an object into the kernel.
func (d *Datapath) loadObject(what string, read func() (*ebpf.CollectionSpec, error), into any, stays bool) error {
	spec, err := read()
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	if err := d.prepare(spec); err != nil {
		return err
	}
	var loaded *ebpf.Collection
	err = d.aside(func() (err error) {
		loaded, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: d.sharedMaps(spec)})
		return err
	})
	if err != nil {
		return fmt.Errorf("load %s: %w", what, err)
	}
	defer loaded.Close() // of what was not assigned
	if err := d.know(slices.Collect(maps.Values(loaded.Programs))...); err != nil {
		return fmt.Errorf("load %s: %w", what, err)
	}
	made := maps.Clone(loaded.Maps)
	if err := loaded.Assign(into); err != nil {
		return fmt.Errorf("load %s: %w", what, err)
	}
	for name, m := range made {
		// What a hook remembers of the frames that it sends straight to pods is its own.
		own := name == "ol_express_lasts" || name == "ol_express_turns" || !strings.HasPrefix(name, "ol_")
		if stays && !own {
			d.shared[name] = m
		}
	}
	return nil
}

// Meanwhile has fn called, on the caller's goroutine, while the kernel looks at programs that are loaded,
// which takes seconds on a slow machine. It is to return when loaded is closed. It may read and
// change what there is, and must load nothing: what is being loaded is not there yet.
func (d *Datapath) Meanwhile(fn func(loaded <-chan struct{})) { d.meanwhile = fn }

// aside loads something on a goroutine of its own, while the caller's looks after the rest.
func (d *Datapath) aside(load func() error) (err error) {
	if d.meanwhile == nil {
		return load()
	}
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		err = load()
	}()
	d.meanwhile(loaded)
	<-loaded
	return err
}

// Watch switches the tracing of polls on or off. It is on after Load; without
// it Cores stand still, and nothing may be attached to a device.
func (d *Datapath) Watch(on bool) (err error) {
	switch {
	case on && d.polls == nil:
		if err := d.forgetLastPolls(); err != nil {
			return err
		}
		d.polls, err = d.attachTracing(heldPolls, d.trace.OlNapiPoll)
	case !on && d.polls != nil:
		err = d.polls.Close()
		d.polls = nil
	}
	return err
}

// watchCores tells the programs in time when a core is being taken offline.
func (d *Datapath) watchCores() error {
	for name, prog := range map[string]*ebpf.Program{"cpuhp_enter": d.trace.OlCoreLeaves, "cpuhp_exit": d.trace.OlCoreStays} {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: name, Program: prog})
		if err != nil {
			return fmt.Errorf("attach %s to its tracepoint: %w", prog, err)
		}
		d.tracer = append(d.tracer, l)
	}
	return nil
}

// forgetLastPolls unlinks what comes from what was seen before a pause.
func (d *Datapath) forgetLastPolls() error {
	for cpu := range uint32(d.cpus) {
		var v stagesOlCpu
		if err := d.stages.OlCpus.Lookup(cpu, &v); err != nil {
			return fmt.Errorf("read core %d: %w", cpu, err)
		}
		v.Full, v.NicFull, v.Stage = 0, 0, uint8(stagesOlStageOL_NR_STAGES)
		clear(v.Holding.Napi[:])
		v.Holding.More = 0
		if err := d.stages.OlCpus.Put(cpu, v); err != nil {
			return fmt.Errorf("write core %d: %w", cpu, err)
		}
	}
	return nil
}

// attachTracing attaches a program to the tracepoint that it was written for. The link is held by that name.
func (d *Datapath) attachTracing(name string, prog *ebpf.Program) (link.Link, error) {
	l, err := link.AttachTracing(link.TracingOptions{Program: prog})
	if err != nil {
		return nil, fmt.Errorf("attach %s to its tracepoint: %w", prog, err)
	}
	return d.hold(name, l)
}

// prepare sizes the per-core maps and sets the load-time constants.
func (d *Datapath) prepare(spec *ebpf.CollectionSpec) error {
	perCPU := map[string]uint32{
		"ol_cpus":            1,
		"ol_lane_threads":    1,
		"ol_latency_threads": 1,
		"ol_leaves":          1,
		"ol_prios":           1,
		"ol_cell_marks":      uint32(stagesOlLimitOL_MAX_TUNNELS),
		"ol_slots":           uint32(stagesOlStageOL_NR_STAGES) * uint32(stagesOlLimitOL_SLOTS),
		"ol_elephants":       uint32(stagesOlLimitOL_ELEPHANTS),
	}
	for name, n := range perCPU {
		if m := spec.Maps[name]; m != nil {
			m.MaxEntries = n * uint32(d.cpus)
		}
	}
	for name, value := range map[string]any{
		"ol_key0":        binary.NativeEndian.Uint64(d.key[:8]),
		"ol_key1":        binary.NativeEndian.Uint64(d.key[8:]),
		"ol_nr_cpus":     uint32(d.cpus),
		"ol_merge_magic": magic(d.key),
	} {
		if v := spec.Variables[name]; v != nil {
			if err := v.Set(value); err != nil {
				return fmt.Errorf("set constant %s: %w", name, err)
			}
		}
	}
	return nil
}

// sharedMaps are the maps of spec that the objects before it have made already.
func (d *Datapath) sharedMaps(spec *ebpf.CollectionSpec) map[string]*ebpf.Map {
	shared := maps.Clone(d.shared)
	maps.DeleteFunc(shared, func(name string, _ *ebpf.Map) bool { return spec.Maps[name] == nil })
	return shared
}

// CPUs is the number of cores that the maps are sized to.
func (d *Datapath) CPUs() int { return d.cpus }

// AttachUnderlay attaches the steering program behind the other tcx programs of an
// underlay's ingress. Closing what it returns takes it off again.
func (d *Datapath) AttachUnderlay(dev Device) (io.Closer, error) {
	return d.attachTCX(dev, ebpf.AttachTCXIngress, d.stages.OlUnderlayIn)
}

// AttachTunnel attaches the program that takes back the hash which has chosen the core of the tunnel stage, on a
// tunnel's ingress, in front of the others: what one of them hands on, none behind it sees.
func (d *Datapath) AttachTunnel(dev Device) (io.Closer, error) {
	l, err := attachTCXAt(dev, ebpf.AttachTCXIngress, link.Head(), d.stages.OlTunnelClear)
	if err != nil {
		return nil, err
	}
	return d.hold(heldTCX, l)
}

// AttachPod attaches the steering program behind the other tcx programs on the
// egress of the host end of a pod's veth.
func (d *Datapath) AttachPod(dev Device) (io.Closer, error) {
	return d.attachTCX(dev, ebpf.AttachTCXEgress, d.stages.OlPodOut)
}

// AttachPodMerge attaches the program that sends split flows by the resequencer on the egress
// of the host end of a pod's veth, in a namespace that has one.
func (d *Datapath) AttachPodMerge(dev Device) (io.Closer, error) {
	return d.attachBranches(dev, ebpf.AttachTCXEgress, &d.branches.OlPodMerge)
}

// AttachUnderlaySplit attaches the program that cuts flows into micro-flows on the ingress of
// an underlay; their branches are lanes of the tunnel stage.
func (d *Datapath) AttachUnderlaySplit(dev Device) (io.Closer, error) {
	return d.attachBranches(dev, ebpf.AttachTCXIngress, &d.branches.OlUnderlaySplit)
}

// AttachUnderlayNumber attaches the program that takes over the numbers that XDP gives to
// frames of split UDP flows, and sends what comes by a branch to its second core, on the
// ingress of an underlay.
func (d *Datapath) AttachUnderlayNumber(dev Device) (io.Closer, error) {
	return d.attachBranches(dev, ebpf.AttachTCXIngress, &d.branches.OlUnderlayNumber)
}

// AttachMerged attaches the program that sends on what has been put in order on the ingress of
// the device behind a resequencer.
func (d *Datapath) AttachMerged(dev Device) (io.Closer, error) {
	return d.attachBranches(dev, ebpf.AttachTCXIngress, &d.branches.OlMergedIn)
}

// AttachPodLeftAlone attaches the program for pods that are not steered: it
// takes back what was done to their packets before they were known as theirs.
func (d *Datapath) AttachPodLeftAlone(dev Device) (io.Closer, error) {
	return d.attachTCX(dev, ebpf.AttachTCXEgress, d.stages.OlPodRestore)
}

// attachBranches is attachTCX for a program that may have to be loaded first.
func (d *Datapath) attachBranches(dev Device, at ebpf.AttachType, prog **ebpf.Program) (io.Closer, error) {
	if err := d.needBranches(); err != nil {
		return nil, err
	}
	return d.attachTCX(dev, at, *prog)
}

// attachTCX attaches a program to a hook, behind the others.
func (d *Datapath) attachTCX(dev Device, at ebpf.AttachType, prog *ebpf.Program) (io.Closer, error) {
	l, err := attachTCXAt(dev, at, link.Tail(), prog)
	if err != nil {
		return nil, err
	}
	return d.hold(heldTCX, l)
}

func attachTCXAt(dev Device, at ebpf.AttachType, anchor link.Anchor, prog *ebpf.Program) (link.Link, error) {
	var l link.Link
	err := dev.Netns.Visit(func() error {
		var err error
		l, err = link.AttachTCX(link.TCXOptions{
			Interface: dev.Ifindex,
			Program:   prog,
			Attach:    at,
			Anchor:    anchor,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("attach %s to device %d: %w", at, dev.Ifindex, err)
	}
	return l, nil
}

// Close stops tracing and unloads everything. Attachments are closed one by one
// before.
func (d *Datapath) Close() error {
	errs := []error{d.sample.close(), d.Watch(false), d.CountUnread(false)}
	for _, l := range d.tracer {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, d.trace.Close(), d.xdp.Close(), d.branches.Close(), d.stages.Close())...)
}
