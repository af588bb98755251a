// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/overlane/overlane/internal/encap"
)

// Stage is a hop of the receive path after which work may go on on another
// core.
type Stage int

// The stages, as in bpf/abi.h.
const (
	NIC    = Stage(stagesOlStageOL_STAGE_NIC)
	Tunnel = Stage(stagesOlStageOL_STAGE_TUNNEL)
	Pod    = Stage(stagesOlStageOL_STAGE_POD)
	Stages = int(stagesOlStageOL_NR_STAGES)
)

func (s Stage) String() string {
	return [Stages]string{"nic", "tunnel", "pod"}[s]
}

// LaneLocal in Lanes.Instead means: the flow stays on the core it is on.
const LaneLocal = 0xff

// MaxLanes is the number of lanes that one stage can have.
const MaxLanes = int(stagesOlLimitOL_MAX_LANES)

// SetLanes names the cores that take a stage's work, in ascending order: the
// order in which the kernel keeps the cores of an RPS mask. mask are the cores of
// that, if these are more. It must not be called while a core steers to that stage.
func (d *Datapath) SetLanes(s Stage, cores []int, mask ...int) error {
	if len(mask) == 0 {
		mask = cores
	}
	if len(cores) > MaxLanes {
		return fmt.Errorf("set lanes of stage %s: %d cores, at most %d can be used", s, len(cores), MaxLanes)
	}
	if !slices.IsSorted(cores) {
		return fmt.Errorf("set lanes of stage %s: cores %v are not in ascending order", s, cores)
	}
	d.policy.Stage[s] = stagesOlPolicy{}.Stage[s]
	p := &d.policy.Stage[s]
	p.Nr = uint32(len(cores))
	if s == Pod {
		clear(d.policy.PodStay[:])
		for i, c := range mask {
			d.policy.PodStay[c], _ = laneHash(i, len(mask))
		}
	}
	for i, c := range cores {
		p.Cpu[i] = uint16(c)
		p.Instead[i] = uint8(i)
		at := slices.Index(mask, c)
		if at < 0 {
			return fmt.Errorf("set lanes of stage %s: core %d is not in the mask %v", s, c, mask)
		}
		p.Hash[i], p.Steps = laneHash(at, len(mask))
	}
	return d.writePolicy()
}

// hashStep is what hashes of a flow for one lane and another differ by, or by a multiple of it.
const hashStep = uint64(stagesOlLimitOL_HASH_STEP)

// MaxMask is of how many cores a mask may be that SetLanes is told of.
const MaxMask = 1 << 32 / int(hashStep) / 2

// laneHash is the lowest multiple of hashStep that reciprocal_scale() maps to index i of n, and how many more follow
// whose hashes up to the next one are all mapped there. It is not 0: a packet without hash is not steered.
func laneHash(i, n int) (lowest, steps uint32) {
	first := (uint64(i)<<32 + uint64(n) - 1) / uint64(n)
	return uint32((first/hashStep + 1) * hashStep), uint32(1<<32/uint64(n)/hashStep - 1)
}

// SetLeaving marks cores that take no flow of a stage any more: the next core of
// the stage that stays takes theirs, under the order guard.
func (d *Datapath) SetLeaving(s Stage, leaving func(core int) bool) error {
	p := &d.policy.Stage[s]
	n := int(p.Nr)
	for i := range n {
		p.Instead[i] = LaneLocal
		for k := range n {
			if j := (i + k) % n; !leaving(int(p.Cpu[j])) {
				p.Instead[i] = uint8(j)
				break
			}
		}
	}
	return d.writePolicy()
}

// Steer tells which stages the hooks on a core may send to lanes. Flows that are
// on a lane leave it under the order guard.
func (d *Datapath) Steer(core int, stages ...Stage) error {
	var flags uint8
	for _, s := range stages {
		flags |= 1 << s
	}
	if d.policy.CoreFlags[core] == flags {
		return nil
	}
	d.policy.CoreFlags[core] = flags
	return d.writePolicy()
}

// SetNeutral makes packets that are not steered immune to RPS: it is on as long
// as masks of ours are.
func (d *Datapath) SetNeutral(on bool) error {
	setFlag(&d.policy.Flags, stagesOlFlagOL_F_NEUTRAL, on)
	return d.writePolicy()
}

// setFlag sets or clears flags of a word of the policy, and tells whether it is another one by that.
func setFlag[W uint8 | uint32, F ~uint32](word *W, flags F, on bool) (changed bool) {
	was := *word
	*word &^= W(flags)
	if on {
		*word |= W(flags)
	}
	return *word != was
}

// bit is a truth value as the kernel side has it.
func bit(on bool) uint8 {
	if on {
		return 1
	}
	return 0
}

// Tuning are the numbers by which flows look for other lanes.
type Tuning struct {
	RebalanceQueue uint32 // packets in a lane's queue that make its flows look for another
	Resteer        bool   // tests: each poll wishes for another lane
}

// SetTuning replaces the tuning.
func (d *Datapath) SetTuning(t Tuning) error {
	d.policy.RebalanceQueue = t.RebalanceQueue
	setFlag(&d.policy.Flags, stagesOlFlagOL_F_RESTEER, t.Resteer)
	return d.writePolicy()
}

// SetBusy tells each core's utilisation in thousandths.
func (d *Datapath) SetBusy(permille []uint16) error {
	copy(d.policy.Busy[:], permille)
	return d.writePolicy()
}

// WatchdogTimeout is how long flows stay on lanes without a Heartbeat.
const WatchdogTimeout = time.Duration(stagesOlLimitOL_WATCHDOG_MS) * time.Millisecond

// Heartbeat tells that the daemon lives. After the first one, flows leave their lanes, under the order guard, when
// there is none for WatchdogTimeout.
func (d *Datapath) Heartbeat() error {
	now, err := Now()
	if err != nil {
		return err
	}
	d.policy.Heartbeat = now
	return d.writePolicy()
}

func (d *Datapath) writePolicy() error {
	if err := d.stages.OlPolicies.Put(uint32(0), &d.policy); err != nil {
		return fmt.Errorf("write policy: %w", err)
	}
	return nil
}

// TunnelDevice is a tunnel to be steered.
type TunnelDevice struct {
	Kind     encap.Kind
	VNI      uint32
	AnyVNI   bool // collect metadata
	Port     uint16
	Ifindex  int
	NetnsIno uint64
	Outer    int // the outer IP version that it takes, 0 for both
	// NoGRO tells that no packet passes the device's GRO. It is asked of those that are steered only, as the kernel has
	// all other changes of devices wait for the answer. Nil: packets do.
	NoGRO func() bool
}

// noGRO is that for the programs.
func (t TunnelDevice) noGRO() uint8 { return bit(t.NoGRO != nil && t.NoGRO()) }

// cell is where polls of the device are noted.
func (t TunnelDevice) cell() stagesOlCellKey { return CellDevice{t.Ifindex, t.NetnsIno}.key() }

// MaxTunnels is how many tunnels are steered at a time; those with the same headers count as one.
const MaxTunnels = int(stagesOlLimitOL_MAX_TUNNELS)

// maxDevices is how many devices the tracepoint knows. Its map holds twice as many:
// new ones come in before old ones go.
const maxDevices = 4 * MaxTunnels

// anyVNI is that of tunnels that take all: OL_VNI_ANY.
const anyVNI = ^uint32(0)

// describe names a tunnel by what its packets carry.
func describe(t stagesOlTunnel) string {
	vni := fmt.Sprintf("VNI %d", t.Vni)
	if t.Vni == anyVNI {
		vni = "any VNI"
	}
	return fmt.Sprintf("%s port %d, %s", encap.Kind(t.Kind), t.Port, vni)
}

// tooManyTunnels says which tunnels are left alone, a few of them by name.
func tooManyTunnels(alone []string) error {
	if len(alone) == 0 {
		return nil
	}
	rest := ""
	if more := len(alone) - named; more > 0 {
		alone, rest = alone[:named], fmt.Sprintf("; and %d more", more)
	}
	return fmt.Errorf("%w: at most %d are steered, and these take the stock path: %s%s", ErrTooManyTunnels, MaxTunnels, strings.Join(alone, "; "), rest)
}

// named is how many tunnels an error names at most.
const named = 8

// ErrTooManyTunnels says that some tunnels take the stock path.
var ErrTooManyTunnels = errors.New("too many tunnels")

// SetTunnels replaces the tunnels whose packets are steered, and the underlays
// whose polls are measured. A tunnel that stays
// keeps its index, and with it what the order guard knows.
func (d *Datapath) SetTunnels(devs []TunnelDevice, underlays []CellDevice) error {
	tunnels := [stagesOlLimitOL_MAX_TUNNELS]stagesOlTunnel{}
	cells := map[stagesOlCellKey]uint32{}
	var later []stagesOlTunnel // found no place yet
	var laterDevs []TunnelDevice
	var alone []string // too many
	for _, dev := range devs {
		t := stagesOlTunnel{Vni: dev.VNI, Port: dev.Port, Kind: uint8(dev.Kind), Outer: uint8(dev.Outer)}
		if dev.AnyVNI {
			t.Vni = anyVNI
		}
		if i := indexOf(d.policy.Tunnel[:], t); i >= 0 {
			t.NoGro = dev.noGRO()
			tunnels[i], cells[dev.cell()] = t, uint32(i)
		} else {
			later, laterDevs = append(later, t), append(laterDevs, dev)
		}
	}
	for i, t := range later {
		at := indexOf(tunnels[:], t)
		if at < 0 {
			at = slices.IndexFunc(tunnels[:], func(t stagesOlTunnel) bool { return t.Kind == 0 })
		}
		if at < 0 {
			alone = append(alone, describe(t))
			continue
		}
		t.NoGro = laterDevs[i].noGRO()
		tunnels[at], cells[laterDevs[i].cell()] = t, uint32(at)
	}
	for _, u := range underlays {
		if len(cells) == maxDevices {
			break // the others' polls are not measured
		}
		cells[u.key()] = uint32(stagesOlLimitOL_MAX_TUNNELS)
	}
	nr := uint32(0)
	for i, t := range tunnels {
		if t.Kind != 0 {
			nr = uint32(i) + 1
		}
	}

	// What polls the cell of another device is not known yet.
	if err := d.forgetCells(cells); err != nil {
		return err
	}
	// The tracepoint must know a cell before packets are steered through it.
	if err := replace(d.stages.OlCells, d.cells, cells); err != nil {
		return fmt.Errorf("write tunnel cells: %w", err)
	}
	d.cells = cells
	if err := d.trace.OlNrTunnels.Set(nr); err != nil {
		return fmt.Errorf("write tunnel count: %w", err)
	}
	d.policy.Tunnel, d.policy.NrTunnels = tunnels, nr
	return errors.Join(d.writePolicy(), tooManyTunnels(alone))
}

// forgetCells forgets which devices poll the cells of tunnels that go, or become others.
func (d *Datapath) forgetCells(now map[stagesOlCellKey]uint32) error {
	for cell, i := range d.cells {
		if is, ok := now[cell]; ok && is == i || i >= uint32(stagesOlLimitOL_MAX_TUNNELS) {
			continue
		}
		for cpu := range uint32(d.cpus) {
			key := cpu*uint32(stagesOlLimitOL_MAX_TUNNELS) + i
			var m stagesOlMarks
			if err := d.stages.OlCellMarks.Lookup(key, &m); err != nil {
				return fmt.Errorf("read cell %d of core %d: %w", i, cpu, err)
			}
			if m.Napi == 0 {
				continue
			}
			m.Napi = 0
			if err := d.stages.OlCellMarks.Put(key, m); err != nil {
				return fmt.Errorf("write cell %d of core %d: %w", i, cpu, err)
			}
		}
	}
	return nil
}

// indexOf is where a tunnel with the same port, VNI and outer IP version stands, or -1.
func indexOf(list []stagesOlTunnel, t stagesOlTunnel) int {
	return slices.IndexFunc(list, func(o stagesOlTunnel) bool { return o.Port == t.Port && o.Vni == t.Vni && o.Outer == t.Outer })
}

// replace makes m hold want, knowing that it holds have.
func replace[K, V comparable](m *ebpf.Map, have, want map[K]V) error {
	for k, v := range want {
		if old, ok := have[k]; ok && old == v {
			continue
		}
		if err := m.Put(k, v); err != nil {
			return err
		}
	}
	for k := range have {
		if _, ok := want[k]; ok {
			continue
		}
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}
