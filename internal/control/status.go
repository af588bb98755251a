// SPDX-License-Identifier: Apache-2.0

package control

import (
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/rules"
)

// State is what the daemon as a whole is doing.
type State string

const (
	Running  State = "running"  // following the node; Mechanisms say what acts
	Stopping State = "stopping" // restoring what was there before
)

// Schema is the version of what status, plan, doctor and off print as JSON. It changes when a field changes its
// type or its meaning, or goes; not when one is added. 1 had netns as a text in some places, and 0 for what was
// not measured; 2 had merge_delay_ns and merge_unordered.
const Schema = 3

// Status is the daemon's account of itself. Its JSON form is an interface:
// fields are added, never renamed.
type Status struct {
	// Schema is that of the JSON form.
	Schema  int       `json:"schema"`
	State   State     `json:"state"`
	Reason  string    `json:"reason,omitempty"`
	PID     int       `json:"pid"`
	Since   time.Time `json:"since"`
	Version string    `json:"version"`
	Kernel  string    `json:"kernel"`
	// Netns is the cookie of the network namespace whose underlays are worked on.
	Netns uint64 `json:"netns"`
	// Cores are those that work may be steered to now.
	Cores config.CPUList `json:"cores"`

	Tiers      []TierStatus `json:"tiers"`
	Mechanisms []Mechanism  `json:"mechanisms"`
	Devices    []Device     `json:"devices"`
	// Namespaces are what the namespaces are that others have a number of.
	Namespaces []node.Place `json:"namespaces"`
	Lanes      []Lane       `json:"lanes"`
	StageCosts []StageCost  `json:"stage_costs"`
	// Rules give flows their class, the first that fits wins.
	Rules []Rule `json:"rules"`
	// SparseFlows are latency by themselves, as no rule fits them; the first few.
	SparseFlows []SparseFlow `json:"sparse_flows"`
	// Trials are what mechanisms have shown, the latest last.
	Trials []Trial `json:"trials"`
	// Express are the express paths from NICs straight to pods, open or not.
	Express  []ExpressPath `json:"express"`
	Counters Counters      `json:"counters"`
	// Services are those of the machine that change what overlane goes by. The key is older than the name.
	Services []foreign.Service `json:"neighbours"`
	Metrics  Metrics           `json:"metrics"`
}

// Mechanism is the one of that name; empty: there is none.
func (s Status) Mechanism(name string) Mechanism {
	for _, m := range s.Mechanisms {
		if m.Name == name {
			return m
		}
	}
	return Mechanism{}
}

// Metrics is where Prometheus scrapes.
type Metrics struct {
	Address string `json:"address"` // empty: off
	// Reason is why nothing listens there; it is tried again.
	Reason string `json:"reason,omitempty"`
}

// ExpressPath is a path from a NIC, past a tunnel, to a pod.
type ExpressPath struct {
	NIC    string `json:"nic"`
	Tunnel string `json:"tunnel"`
	Pod    string `json:"pod"`   // the host's end of its veth
	Netns  uint64 `json:"netns"` // of that end
	// Name is what people call the pod.
	Name   string `json:"name"`
	Open   bool   `json:"open"`
	Reason string `json:"reason,omitempty"` // which policy or what else stands in the way
}

// Trial is what a mechanism has shown on this node.
type Trial struct {
	Mechanism string `json:"mechanism"`
	Verdict   string `json:"verdict"` // better, worse or undecided
	// Medians of with to without, of packets a second, receive time of a packet and its wait in
	// the NIC; nil: not measured.
	Packets *float64 `json:"packets"`
	Cost    *float64 `json:"cost"`
	Wait    *float64 `json:"wait"`
	Pairs   int      `json:"pairs"` // windows with it that were compared, each with some without
	// At is when, Until when it holds at most.
	At    time.Time `json:"at"`
	Until time.Time `json:"until"`
}

// SparseFlow is a flow that is latency by what it sends.
type SparseFlow struct {
	Flow   string `json:"flow"`
	Core   int    `json:"core"` // that receives it
	Reason string `json:"reason"`
}

// Rule is a priority rule and where it comes from.
type Rule struct {
	rules.Rule
	Added bool `json:"added"` // at run time; else it is the configuration's
	// Packets had their class from it, while priority was in place.
	Packets uint64 `json:"packets"`
}

// TierStatus says whether the node reaches a tier.
type TierStatus struct {
	Name    string `json:"name"`
	Reached bool   `json:"reached"`
	// Reason is the one thing that is missing; Remedy the one command that
	// would change it. Both are empty when the tier is reached.
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// MechanismState is what a mechanism is doing.
type MechanismState string

const (
	Active      MechanismState = "active"      // acts on packets
	Standby     MechanismState = "standby"     // could act, and the governor decided that it should not now
	Off         MechanismState = "off"         // configured so
	Unsupported MechanismState = "unsupported" // the node cannot
	Manual      MechanismState = "manual"      // another program set what it would set
)

// Mechanism is the state of one mechanism and why it is in it.
type Mechanism struct {
	Name   string         `json:"name"`
	State  MechanismState `json:"state"`
	Reason string         `json:"reason"`
	Since  time.Time      `json:"since"`
	// Gain is the factor of one flow's packet rate that the stage costs predict, of what is
	// in place.
	Gain float64 `json:"predicted_gain,omitempty"`
	// Trying: it is switched to and fro to see what it gains, or measured before that, or its programs
	// are being loaded.
	Trying bool `json:"trying,omitempty"`
}

// Role is what a device is for the overlay.
type Role string

const (
	Underlay Role = "underlay"
	Tunnel   Role = "tunnel"
	Pod      Role = "pod"
	// Balancer is a namespace of Docker's own that spreads a service's connections.
	Balancer Role = "balancer"
)

// Device is one device that the daemon owns or leaves alone for a reason.
type Device struct {
	Name   string         `json:"name"`
	Netns  uint64         `json:"netns"`
	Role   Role           `json:"role"`
	State  MechanismState `json:"state"`
	Reason string         `json:"reason,omitempty"`
	// Network is the overlay network of a tunnel or a pod, VNI its number; nil: the tunnel is one for many.
	Network string  `json:"network,omitempty"`
	VNI     *uint32 `json:"vni,omitempty"`
	// Place is that of a pod's own end, Inside what the device is called there.
	Place  *node.Place `json:"place,omitempty"`
	Inside string      `json:"inside,omitempty"`
}

// Lane is one place that steered work goes to. Packets and Drops count since
// the lane exists; Queue is its length when the status was taken, in packets.
type Lane struct {
	Stage   string `json:"stage"`
	Core    int    `json:"core"`
	Packets uint64 `json:"packets"`
	Queue   uint64 `json:"queue"`
	Drops   uint64 `json:"drops"`
}

// StageCost is the measured cost of one stage.
type StageCost struct {
	Stage string `json:"stage"`
	// NsPerPacket is nil where it was not measured.
	NsPerPacket *float64 `json:"ns_per_packet"`
}

// Measured is a number, nil for 0, which stands for one that was not measured.
func Measured(x float64) *float64 {
	if x == 0 {
		return nil
	}
	return &x
}

// Counters count since the daemon started, over all underlays. This is the one table of them: a field's
// tags are its name in JSON, that of its metric (without overlane_, and with the label that tells it from
// others of the name), and what the metric says of itself. Where the metric has none, the field's comment
// has more to say.
type Counters struct {
	// On a node with hardly a packet, or with nothing to do for long, the daemon does not scan.
	OverlayPackets uint64 `json:"overlay_packets" metric:"observed_overlay_packets_total" help:"overlay packets that were counted; while the node is quiet, or has nothing to do for long, they are not"`
	SteeredPackets uint64 `json:"steered_packets" metric:"steered_packets_total" help:"overlay packets that were sent to a lane"`

	SplitPackets uint64 `json:"split_packets" metric:"split_packets_total" help:"packets of flows that were split into micro-flows when they came"`
	Microflows   uint64 `json:"microflows" metric:"microflows_total" help:"micro-flows that these were cut into"`
	Splits       uint64 `json:"splits" metric:"splits_total" help:"times that a flow began to be split"`

	// MergePassed went on at once; MergeLate of these behind others, mostly sent again. MergeUnwatched did
	// not wait though they should have: the daemon did not look after the resequencers. MergeRefused were
	// dropped as too many waited, MergeDropped lost with their resequencer, and MergeNoRoom dropped before
	// they were sent to a branch: too many might have to wait.
	MergePassed    uint64 `json:"merge_passed" metric:"merge_packets_total,outcome=passed" help:"packets of split flows at the resequencers, by what became of them"`
	MergeLate      uint64 `json:"merge_late" metric:"merge_late_packets_total" help:"packets of split flows that passed their resequencer behind later ones, mostly sent again"`
	MergeHeld      uint64 `json:"merge_held" metric:"merge_packets_total,outcome=held"`
	MergeGaps      uint64 `json:"merge_gaps" metric:"merge_waits_ended_total,reason=lost" help:"times that packets did not get what they waited for"`
	MergeExpired   uint64 `json:"merge_expired" metric:"merge_waits_ended_total,reason=limit"`
	MergeUnwatched uint64 `json:"merge_unwatched" metric:"merge_packets_total,outcome=unwatched"`
	MergeRefused   uint64 `json:"merge_refused" metric:"merge_packets_total,outcome=refused"`
	MergeDropped   uint64 `json:"merge_dropped" metric:"merge_packets_total,outcome=dropped"`
	MergeWaiting   uint64 `json:"merge_waiting" metric:"merge_waiting_packets" help:"packets of split flows that wait at resequencers"`
	MergeNoRoom    uint64 `json:"merge_no_room" metric:"merge_packets_total,outcome=no_room"`

	// CountedPackets came out of tunnels while aggregation was on.
	AggregatedPackets uint64 `json:"aggregated_packets" metric:"aggregated_packets_total" help:"datagrams that crossed the overlay in super-packets"`
	SuperPackets      uint64 `json:"super_packets" metric:"super_packets_total" help:"super-packets that these were joined to"`
	CountedPackets    uint64 `json:"counted_packets" metric:"aggregate_counted_packets_total" help:"packets that came out of tunnels while aggregation was on"`

	// ExpressLeft is how often a flow left that path before it was seen to be empty, so that packets may
	// have been overtaken.
	ExpressPackets uint64            `json:"express_packets" metric:"express_packets_total" help:"frames that went from a NIC straight to a pod"`
	ExpressDrops   uint64            `json:"express_drops" metric:"express_drops_total" help:"frames that found no room at the pod, or that the kernel did not hand to its device"`
	ExpressLeft    uint64            `json:"express_left" metric:"express_left_total" help:"times that a flow left that path before it was seen to be empty"`
	ExpressUnfit   map[string]uint64 `json:"express_unfit" metric:"express_unfit_packets_total,reason" help:"packets that took the full path although there was an express path"`

	// LaneChangesHeld waited for the old lane to drain when the packet came. LaneDrops has LaneRefused in it.
	LaneChanges     uint64 `json:"lane_changes" metric:"lane_changes_total" help:"changes of lane that the order guard let pass"`
	LaneChangesHeld uint64 `json:"lane_changes_held" metric:"lane_changes_held_total" help:"polls in which a change of lane had to wait for the old lane to drain"`
	LaneDrops       uint64 `json:"lane_drops" metric:"lane_drops_total" help:"packets that lanes of the NIC stage, or of priority, lost, being full or without memory, and those dropped for their flow to leave a full lane"`
	LaneRefused     uint64 `json:"lane_refused" metric:"lane_refused_packets_total" help:"packets dropped for their flow to leave a full lane"`

	// Frames by their class while there were rules. LatencyHeld, LatencyExcess and BulkLane of these went to
	// the bulk lanes: LatencyHeld behind what their flow had in them, LatencyExcess since the class had had
	// its share of the core.
	LatencyPackets uint64 `json:"latency_packets" metric:"priority_packets_total,class=latency" help:"frames while there were priority rules, by their class"`
	LatencyHeld    uint64 `json:"latency_held" metric:"priority_bulk_lane_packets_total,why=behind_its_flow" help:"frames that were sent to a bulk lane"`
	LatencyExcess  uint64 `json:"latency_excess" metric:"priority_bulk_lane_packets_total,why=beyond_its_share"`
	// ShortCut and Bridged are of mode sync: by the redirect path (bpf_redirect_peer), or by the bridge.
	ShortCut    uint64 `json:"short_cut_packets" metric:"priority_sync_packets_total,path=short,class=latency" help:"packets in mode sync: straight from the tunnel to the pod, or by the bridge"`
	Bridged     uint64 `json:"bridged_packets" metric:"priority_sync_packets_total,path=bridge,class=latency"`
	BulkPackets uint64 `json:"bulk_packets" metric:"priority_packets_total,class=bulk"`
	BulkLane    uint64 `json:"bulk_lane_packets" metric:"priority_bulk_lane_packets_total,why=bulk"`
	Refused     uint64 `json:"refused_packets" metric:"priority_drops_total" help:"frames of either class that a full bulk lane dropped"`
	// In packets as GRO has made them of what came from the bulk lanes.
	BulkShortCut uint64 `json:"bulk_short_cut_packets" metric:"priority_sync_packets_total,path=short,class=bulk"`
	BulkBridged  uint64 `json:"bulk_bridged_packets" metric:"priority_sync_packets_total,path=bridge,class=bulk"`

	Unparsed map[string]uint64 `json:"unparsed" metric:"stock_path_packets_total,reason" help:"packets that took the stock path because they were not understood"`
	Scans    uint64            `json:"scans" metric:"scans_total" help:"scans of the node after something on it had changed, or might have"`
}

// OffReport is what Off did: what became of every value that was changed.
type OffReport struct {
	Schema int `json:"schema"`
	// Error is what could not be done.
	Error string `json:"error,omitempty"`
	// PID is that of the daemon that restored, 0 when none was running.
	PID int `json:"pid"`
	// EndedPID is that of a daemon that did not answer and was ended, Killed: by SIGKILL.
	EndedPID int  `json:"ended_pid,omitempty"`
	Killed   bool `json:"killed,omitempty"`
	apply.Report
}

// withoutNil makes empty lists of missing ones, which JSON would show as null.
func (r OffReport) withoutNil() OffReport {
	r.Results = list(r.Results)
	r.Schema = Schema
	return r
}

func (st Status) withoutNil() Status {
	st.Tiers, st.Mechanisms, st.Devices = list(st.Tiers), list(st.Mechanisms), list(st.Devices)
	st.Lanes, st.StageCosts, st.Rules = list(st.Lanes), list(st.StageCosts), list(st.Rules)
	st.SparseFlows, st.Express, st.Trials = list(st.SparseFlows), list(st.Express), list(st.Trials)
	st.Services, st.Namespaces = list(st.Services), list(st.Namespaces)
	st.Schema = Schema
	if st.Counters.Unparsed == nil {
		st.Counters.Unparsed = map[string]uint64{}
	}
	if st.Counters.ExpressUnfit == nil {
		st.Counters.ExpressUnfit = map[string]uint64{}
	}
	return st
}

func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}
