// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/node"
)

// nics are those of a node that is made up.
type nics struct {
	state map[int]State
	tried int
}

func (n *nics) Look(u node.Underlay) (State, error) {
	s, ok := n.state[u.Ifindex]
	if !ok {
		return s, node.ErrGone
	}
	return s, nil
}

func up(changes uint64, offloads ...string) State {
	s := State{Up: true, Changes: map[string]uint64{"eth0": changes}, Offloads: map[string]bool{}, Queues: 2}
	for _, o := range offloads {
		s.Offloads[o] = true
	}
	return s
}

// attach has an attach make a NIC what it is then.
func (n *nics) attach(becomes State, err error) func() (io.Closer, error) {
	return func() (io.Closer, error) {
		n.tried++
		if err != nil {
			return nil, fmt.Errorf("attach: %w", err)
		}
		n.state[1] = becomes
		return &hook{}, nil
	}
}

type hook struct{ closed bool }

func (h *hook) Close() error { h.closed = true; return nil }

// files is a folder that is made up.
type files map[string][]byte

func (f files) ReadFile(name string) ([]byte, error) {
	if b, ok := f[name]; ok {
		return b, nil
	}
	return nil, fs.ErrNotExist
}

func (f files) WriteFile(name string, b []byte) error { f[name] = bytes.Clone(b); return nil }

func eth(driver string) node.Underlay {
	dev := node.Dev{NetnsCookie: 1, Ifindex: 1, Name: "eth0"}
	return node.Underlay{Dev: dev, MTU: 1500, RxQueues: 2, Driver: driver, At: "0000:00:03.0", Receivers: []node.Receiver{{Dev: dev, Driver: driver}}}
}

func places(t *testing.T, n *nics, f Folder, log io.Writer) *Places {
	t.Helper()
	m, err := Remember(f)
	if err != nil {
		t.Fatal(err)
	}
	return New(n, m, slog.New(slog.NewTextHandler(log, nil)))
}

var (
	byItself = Want{By: Microflows}
	asked    = Want{By: Pipeline, Asked: true}
)

func left(t *testing.T, err error, words string) {
	t.Helper()
	var l *Left
	if !errors.As(err, &l) || !strings.Contains(l.Reason, words) {
		t.Errorf("%v, want %q", err, words)
	}
}

// By itself XDP comes only to NICs of which it is known that this harms none.
func TestWhatHarmsHasToBeAskedFor(t *testing.T) {
	for driver, words := range map[string]string{
		"igb": "restarts the link", "virtio_net": "gives up receive offloads", "odd": "is not known", "e1000e": "is not known",
		"veth": "", "hv_netvsc": "",
	} {
		n := &nics{state: map[int]State{1: up(2)}}
		p := places(t, n, nil, io.Discard)
		err := p.Take(eth(driver), byItself, n.attach(up(2), nil))
		if words == "" {
			if err != nil || !p.On(eth(driver)) {
				t.Errorf("%s: %v", driver, err)
			}
			continue
		}
		left(t, err, words)
		if n.tried != 0 {
			t.Errorf("%s: it was tried all the same", driver)
		}
		if err := p.Take(eth(driver), asked, n.attach(up(2), nil)); err != nil {
			t.Errorf("%s, asked for: %v", driver, err)
		}
	}
	bond := eth("bond")
	bond.Receivers = []node.Receiver{{Dev: node.Dev{Ifindex: 2}, Driver: "veth"}, {Dev: node.Dev{Ifindex: 3}, Driver: "igb"}}
	n := &nics{state: map[int]State{1: up(2)}}
	left(t, places(t, n, nil, io.Discard).Take(bond, byItself, n.attach(up(2), nil)), "restarts the link")
}

// What an attach was seen to do counts for ever, also what the driver is known not to do.
func TestWhatWasSeenIsRemembered(t *testing.T) {
	before := up(2, "eth0 rx-lro")
	for name, tt := range map[string]struct {
		driver string
		after  State
		words  string // of why it does not come by itself; empty: it does
	}{
		"carrier counts":          {"odd", up(4, "eth0 rx-lro"), "restarts the link, as was seen"},
		"carrier is gone":         {"odd", State{Changes: before.Changes, Offloads: before.Offloads}, "restarts the link"},
		"an offload is gone":      {"odd", up(2), "switches off eth0 rx-lro, as was seen"},
		"nothing":                 {"odd", before, ""},
		"known to be harmless":    {"veth", up(3, "eth0 rx-lro"), "restarts the link"},
		"known to harm, not seen": {"igb", before, "restarts the link"},
	} {
		t.Run(name, func(t *testing.T) {
			f := files{}
			n := &nics{state: map[int]State{1: before}}
			p := places(t, n, f, io.Discard)
			u := eth(tt.driver)
			if err := p.Take(u, asked, n.attach(tt.after, nil)); err != nil {
				t.Fatal(err)
			}
			if err := p.Release(u.Key(), Pipeline); err != nil {
				t.Fatal(err)
			}
			again := places(t, n, f, io.Discard) // a restart
			if got := again.Why(u, byItself); !strings.Contains(got, tt.words) || (got == "") != (tt.words == "") {
				t.Errorf("%q, want %q", got, tt.words)
			}
			other := u
			other.MTU = 9000
			if got := again.Why(other, byItself); got == "" && tt.driver == "odd" {
				t.Error("with another MTU nothing was seen")
			}
			elsewhere := u
			elsewhere.At = "0000:00:04.0"
			if got := again.Why(elsewhere, byItself); strings.Contains(got, "seen") {
				t.Errorf("another NIC: %q", got)
			}
		})
	}
}

// A link that goes down by itself just then is not the driver's doing: that is the same each time.
func TestALinkThatWentDownByChanceIsNoHarm(t *testing.T) {
	calm, flaps := up(2), up(4)
	for name, tt := range map[string]struct {
		after []State
		harms bool
	}{
		"never":           {[]State{calm, calm}, false},
		"the second time": {[]State{calm, flaps}, false},
		"the first time":  {[]State{flaps, calm}, false},
		"both times":      {[]State{flaps, flaps}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, u := files{}, eth("odd")
			for _, after := range tt.after {
				n := &nics{state: map[int]State{1: calm}}
				p := places(t, n, f, io.Discard)
				if err := errors.Join(p.Take(u, asked, n.attach(after, nil)), p.Release(u.Key(), Pipeline)); err != nil {
					t.Fatal(err)
				}
			}
			got := places(t, &nics{}, f, io.Discard).Why(u, byItself)
			if strings.Contains(got, "restarts the link") != tt.harms {
				t.Errorf("%q", got)
			}
		})
	}
}

func TestAnotherKernelsDriversMayDoOtherwise(t *testing.T) {
	f := files{MemoryFile: []byte(`{"version":1,"kernel":"1.2.3","nics":[{"driver":"odd","at":"0000:00:03.0","mtu":1500,"attached":true}]}`)}
	if why := places(t, &nics{}, f, io.Discard).Why(eth("odd"), byItself); why == "" {
		t.Error("what an earlier kernel's driver did counts")
	}
	f[MemoryFile] = []byte("{")
	if m, err := Remember(f); err == nil || m.harmless(eth("odd")) {
		t.Errorf("a torn file: %v", err)
	}
}

// Whatever number a driver refuses with, the NIC is left alone, said once, and tried again when what
// it refuses by has changed.
func TestARefusalIsOneWhateverItsNumber(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EINVAL, unix.EOPNOTSUPP, unix.ENOMEM, unix.ERANGE, unix.ENOSPC, unix.ENOTCONN} {
		t.Run(errno.Error(), func(t *testing.T) {
			f, log := files{}, &bytes.Buffer{}
			n := &nics{state: map[int]State{1: up(2, "eth0 rx-lro")}}
			p := places(t, n, f, log)
			u := eth("igb")
			u.MTU = 9000
			no := n.attach(State{}, &datapath.Refused{Errno: errno, Reason: "igb: too small"})
			for range 3 {
				left(t, p.Take(u, asked, no), "igb: too small")
				p.Look([]node.Underlay{u})
			}
			p = places(t, n, f, log) // a restart
			left(t, p.Take(u, asked, no), "igb: too small")
			if n.tried != 1 {
				t.Errorf("tried %d times", n.tried)
			}
			if got := strings.Count(log.String(), "igb: too small"); got != 2 {
				t.Errorf("%d lines in the logs of two daemons:\n%s", got, log)
			}
			smaller := u
			smaller.MTU = 1500
			if why := p.Why(smaller, asked); why != "" {
				t.Errorf("another MTU: %s", why)
			}
			n.state[1] = up(2)
			p.Look([]node.Underlay{u})
			if why := p.Why(u, asked); why != "" {
				t.Errorf("an offload less: %s", why)
			}
		})
	}
}

func TestProgramsOfOthersStandInTheWayUntilTheNextLook(t *testing.T) {
	n := &nics{state: map[int]State{1: up(2)}}
	p := places(t, n, files{}, io.Discard)
	u := eth("veth")
	busy := n.attach(State{}, errors.Join(datapath.ErrForeignXDP, &datapath.Refused{Errno: unix.EBUSY, Reason: "Can't replace"}))
	left(t, p.Take(u, asked, busy), "a foreign XDP program")
	left(t, p.Take(u, asked, busy), "Can't replace")
	p.Look([]node.Underlay{u})
	if err := p.Take(u, asked, n.attach(up(2), nil)); err != nil || n.tried != 2 {
		t.Errorf("%v, tried %d times", err, n.tried)
	}
	u.ForeignXDP = true
	if why := places(t, n, nil, io.Discard).Why(u, asked); why != Foreign {
		t.Errorf("%q", why)
	}
	u.VLANs = true
	if why := places(t, n, nil, io.Discard).Why(u, asked); why != UnderVLANs {
		t.Errorf("%q", why)
	}
}

// A program goes with the last that has it, and priority's is another one.
func TestThePlaceIsSharedAndGivenBack(t *testing.T) {
	n := &nics{state: map[int]State{1: up(2)}}
	p := places(t, n, nil, io.Discard)
	u := eth("veth")
	h := &hook{}
	load := func() (io.Closer, error) { n.tried++; return h, nil }
	for _, by := range []Mechanism{Pipeline, Express} {
		if err := p.Take(u, Want{by, true}, load); err != nil {
			t.Fatal(err)
		}
	}
	left(t, p.Take(u, Want{Priority, true}, load), "express's program is on eth0")
	if err := p.Release(u.Key(), Express); err != nil || h.closed || !p.Shared() || p.Holds(Express) {
		t.Errorf("%v, taken off: %t", err, h.closed)
	}
	if err := p.ReleaseAll(Pipeline, Microflows); err != nil || !h.closed || p.On(u) || n.tried != 1 {
		t.Errorf("%v, taken off: %t, attached %d times", err, h.closed, n.tried)
	}
	if err := p.Take(u, Want{Priority, true}, load); err != nil {
		t.Fatal(err)
	}
	left(t, p.Take(u, byItself, load), "priority's program is on eth0")
	// Priority's does that, too, and goes with it.
	if err := p.Take(u, Want{Express, true}, load); err != nil || !p.Holds(Express) || p.Shared() {
		t.Errorf("beside priority: %v", err)
	}
	h.closed = false
	if err := p.Release(u.Key(), Priority); err != nil || !h.closed || p.On(u) {
		t.Errorf("%v, priority's program is there without it: %t", err, p.On(u))
	}
}

// Another device may get the number of one that is gone.
func TestADeviceThatIsGoneHasNoPlace(t *testing.T) {
	n := &nics{state: map[int]State{1: up(2)}}
	p := places(t, n, nil, io.Discard)
	u := eth("veth")
	if err := p.Take(u, asked, n.attach(up(2), nil)); err != nil {
		t.Fatal(err)
	}
	if p.Look(nil); !p.On(u) { // no tunnel uses it any more
		t.Error("a program goes with the tunnels")
	}
	delete(n.state, 1)
	if p.Look(nil); p.On(u) {
		t.Error("a program is on a device that is gone")
	}
}

// A NIC of whose frames programs can read nothing is left by all, with that MTU; priority leaves it itself.
func TestANICWhoseHeadersXDPDoesNotSeeIsLeft(t *testing.T) {
	for _, by := range []Mechanism{Pipeline, Priority} {
		n, log := &nics{state: map[int]State{1: up(2)}}, &bytes.Buffer{}
		p := places(t, n, nil, log)
		u, want := eth("mlx5_core"), Want{by, true}
		if err := p.Take(u, want, n.attach(up(2), nil)); err != nil {
			t.Fatal(err)
		}
		if left, err := p.SawHeadless([]int{2}); left || err != nil || !p.On(u) {
			t.Errorf("%s: another NIC: left %t, %v", by, left, err)
		}
		if left, err := p.SawHeadless([]int{1}); !left || err != nil || p.On(u) != (by == Priority) {
			t.Errorf("%s: left %t, has a program %t, %v", by, left, p.On(u), err)
		}
		if left, err := p.SawHeadless([]int{1}); left || err != nil || p.Why(u, want) != Headless {
			t.Errorf("%s: a second time: %t, %v, %q", by, left, err, p.Why(u, want))
		}
		if err := p.Release(u.Key(), by); err != nil || p.On(u) {
			t.Errorf("%s: %v", by, err)
		}
		left(t, p.Take(u, want, n.attach(up(2), nil)), "leaves the first buffer of frames empty")
		p.Look([]node.Underlay{u})
		if why := p.Bars(u, want); why != Headless || strings.Count(log.String(), "left without") != 1 || n.tried != 1 {
			t.Errorf("%s: %q, tried %d times:\n%s", by, why, n.tried, log)
		}
		u.MTU = 9000
		if err := p.Take(u, want, n.attach(up(2), nil)); err != nil {
			t.Errorf("%s: with another MTU: %v", by, err)
		}
	}
}

// Failures that are none of the driver's are no reason to leave the NIC alone.
func TestOtherFailuresAreNoRefusals(t *testing.T) {
	n := &nics{state: map[int]State{1: up(2)}}
	p := places(t, n, files{}, io.Discard)
	for _, err := range []error{errors.New("the verifier says no"), errors.Join(node.ErrGone, unix.ENODEV)} {
		if got := p.Take(eth("veth"), asked, n.attach(State{}, err)); !errors.Is(got, err) {
			t.Errorf("%v", got)
		}
	}
	if why := p.Why(eth("veth"), asked); why != "" {
		t.Error(why)
	}
}

// RPS and RFS tell frames of a lane from those of the stock path, and have each go to another core. They may be switched
// on while a program is there.
func TestWhereRPSMovesFramesThereAreNoLanes(t *testing.T) {
	n := &nics{state: map[int]State{1: up(2)}}
	p := places(t, n, nil, io.Discard)
	u, moved := eth("veth"), eth("veth")
	moved.Moves = "RPS moves what eth0 receives"
	left(t, p.Take(moved, asked, n.attach(up(2), nil)), "no XDP program: RPS moves")
	if n.tried != 0 {
		t.Error("it was tried all the same")
	}
	if err := p.Take(u, asked, n.attach(up(2), nil)); err != nil {
		t.Fatal(err)
	}
	for _, w := range []Want{asked, {By: Express, Asked: true}} {
		if why := p.Why(moved, w); why != moved.Moves {
			t.Errorf("%s, with its program there: %q", w.By, why)
		}
	}
	left(t, p.Take(moved, asked, n.attach(up(2), nil)), "RPS moves")
	if why := p.Why(u, asked); why != "" {
		t.Errorf("without RPS again: %q", why)
	}
}

// Where senders leave checksums to the receiver nothing is attached, whether the node tells or a frame did. What has a place
// already leaves in order. A frame's word holds as long as nothing else can tell.
func TestWhereSendersLeaveChecksumsThereIsNoProgram(t *testing.T) {
	n, log := &nics{state: map[int]State{1: up(2)}}, &bytes.Buffer{}
	p := places(t, n, nil, log)
	seen, hidden := eth("veth"), eth("veth")
	seen.Receivers[0].Peer = node.Dev{NetnsCookie: 2, Ifindex: 3, Name: "peer"}
	hidden.Receivers[0].Peer = node.Dev{Ifindex: 3, Name: "veth3"}
	told := seen
	told.Unfinished = "peer leaves checksums"
	left(t, p.Take(told, asked, n.attach(up(2), nil)), "no XDP program: peer leaves checksums")
	if n.tried != 0 {
		t.Error("it was tried all the same")
	}
	for _, u := range []node.Underlay{seen, hidden} {
		p.Look([]node.Underlay{u})
		if err := p.Take(u, asked, n.attach(up(2), nil)); err != nil {
			t.Fatal(err)
		}
		if p.SawUnfinished([]int{2}) || p.Unfit(u) != "" {
			t.Errorf("another NIC: %q", p.Unfit(u))
		}
		if err := p.ReleaseUnfit(Pipeline); err != nil || !p.On(u) {
			t.Errorf("a place is given back for no reason: %v", err)
		}
		if !p.SawUnfinished([]int{1}) || p.SawUnfinished([]int{1}) || !p.On(u) {
			t.Error("it is not told of once, or the place is taken from what has to leave in order")
		}
		for _, w := range []Want{asked, {By: Express, Asked: true}} {
			if why := p.Why(u, w); !strings.Contains(why, "frames came by eth0 whose senders had left the checksum to the receiver") {
				t.Errorf("%s: %q", w.By, why)
			}
		}
		if err := p.ReleaseUnfit(Pipeline); err != nil || p.On(u) {
			t.Errorf("the place is not given back: %v", err)
		}
		left(t, p.Take(u, asked, n.attach(up(2), nil)), "frames came by eth0")
		p.Look([]node.Underlay{u})
		if why := p.Bars(u, asked); (why == "") == u.Receivers[0].Hidden() {
			t.Errorf("the other end is out of sight: %t, and after a look: %q", u.Receivers[0].Hidden(), why)
		}
	}
	if why := p.Bars(hidden, asked); !strings.Contains(why, "see: ethtool -K veth3 tx off") {
		t.Error(why)
	}
}
