// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/parser/packet"
)

// Where the fields of a frame of these tests are: VXLAN over IPv4, with IPv4 in it.
const (
	outerIP   = 14
	outerUDP  = outerIP + 20
	vxlan     = outerUDP + 8
	innerEth  = vxlan + 8
	innerIP   = innerEth + 14
	innerUDP  = innerIP + 20
	runHead   = innerUDP + 8 // what is read of a frame
	runLength = innerUDP + 4 // what is compared of it ends in front of its own lengths
)

const (
	laneExpress  = 0xfe
	expressPause = 100 * time.Millisecond
	expressLeave = 5 * time.Millisecond
	longest      = 200 // of an inner frame, for the paths of these tests
)

// The addresses that packet gives to frames, and the tunnel's own.
var (
	nicMAC    = [6]byte{2, 0, 0, 0, 0, 2}
	podMAC    = [6]byte{2, 0, 0, 0, 0, 2}
	tunnelMAC = [6]byte{2, 0, 0, 0, 0, 9}
)

// straight is a bench with a pod behind a veth. It keeps the core's time itself, and tells the
// guard what has become of frames: none goes anywhere.
type straight struct {
	*bench
	t    *testing.T
	now  uint64 // ns, of the core's last poll
	key  ExpressKey
	path ExpressPath
	port uint32
	host *netns.Handle
}

// pod makes a veth, its one end in a namespace of its own.
func pod(t *testing.T, host *netns.Handle, name string) (Device, CellDevice) {
	t.Helper()
	for _, tool := range []string{"ip", "ethtool"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool)
		}
	}
	ns := newNamespace(t)
	index := func(ns *netns.Handle, name string) (index int) {
		t.Helper()
		err := ns.Do(func() error {
			dev, err := net.InterfaceByName(name)
			if err == nil {
				index = dev.Index
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return index
	}
	in(t, host, "ip", "link", "add", name, "up", "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.FD()))
	in(t, ns, "ip", "link", "set", "eth0", "up")
	in(t, ns, "ethtool", "-K", "eth0", "gro", "on") // without it a veth takes no such frames
	return Device{Netns: host, Ifindex: index(host, name)}, CellDevice{Ifindex: index(ns, "eth0"), NetnsIno: ns.Inode()}
}

func newNamespace(t *testing.T) *netns.Handle {
	t.Helper()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	})
	return ns
}

func in(t *testing.T, ns *netns.Handle, args ...string) {
	t.Helper()
	err := ns.Do(func() error {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// newStraight opens a path to a pod. Nothing steers to lanes: what does not go straight stays.
func newStraight(t *testing.T, refresh time.Duration) *straight {
	t.Helper()
	s := &straight{bench: newBench(t, NIC), t: t, host: newNamespace(t)}
	hostEnd, podEnd := pod(t, s.host, "pod0")
	s.key = ExpressKey{NIC: 1, VNI: 42, Port: packet.VXLANPort, MAC: podMAC} // a test run's frames come from lo
	s.path = ExpressPath{
		Host: hostEnd, Pod: podEnd, MaxLen: longest, Refresh: refresh,
		Local: netip.MustParseAddr("192.0.2.2"), NICMAC: nicMAC, TunnelMAC: tunnelMAC,
	}
	now, err := Now()
	s.now = now
	s.must(err, s.Steer(s.core), s.AddPath(s.key, s.path), s.SetExpress(true))
	s.port = s.portOf(podEnd)
	s.poll(0)
	return s
}

func (s *straight) must(errs ...error) {
	s.t.Helper()
	if err := errors.Join(errs...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *straight) portOf(pod CellDevice) uint32 {
	s.t.Helper()
	port, ok := s.express.ports[pod]
	if !ok {
		s.t.Fatalf("no port of %v", pod)
	}
	return port
}

func (s *straight) cpu(change func(*stagesOlCpu)) {
	s.t.Helper()
	var c stagesOlCpu
	s.must(s.stages.OlCpus.Lookup(uint32(s.core), &c))
	change(&c)
	s.must(s.stages.OlCpus.Put(uint32(s.core), c))
}

// poll has the core begin another poll so much later, and tells the guard that all that passed
// before is where it was meant to be, and handled.
func (s *straight) poll(later time.Duration) {
	s.t.Helper()
	s.later(later)
	s.handedOn()
}

// later has the core begin another poll so much later, of which nothing more is known.
func (s *straight) later(later time.Duration) {
	s.t.Helper()
	s.now += uint64(later)
	s.cpu(func(c *stagesOlCpu) { c.Seq, c.Now = c.Seq+1, s.now })
}

func (s *straight) handedOn() {
	s.t.Helper()
	now, err := Now()
	s.must(err)
	var marks stagesOlMarks
	s.cpu(func(c *stagesOlCpu) {
		marks.Mark[0].Time, marks.Mark[0].Seq, marks.Mark[0].NicSeq = now, c.Seq, c.Seq
		c.Polls = marks
		// Where nothing can be read, head and tail are alike: an empty backlog.
		c.Softnet = 1
	})
	s.must(s.stages.OlCellMarks.Put(uint32(s.core)*uint32(stagesOlLimitOL_MAX_TUNNELS), marks))
}

// drained says of a pod's ring that it is empty, or that this is not known.
func (s *straight) drained(port uint32, yes bool) {
	s.t.Helper()
	p := stagesOlPort{}
	if yes {
		p.Napi = 1 // nothing can be read there: not scheduled
	}
	s.must(s.stages.OlPorts.Put(port, p))
}

func (s *straight) send(frame []byte) (verdict uint32, out []byte) {
	s.t.Helper()
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	verdict, err := s.prog.Run(&opts)
	s.must(err)
	return verdict, opts.DataOut
}

// goes sends a frame that is to go straight to a pod.
func (s *straight) goes(what string, frame []byte) {
	s.t.Helper()
	verdict, out := s.send(frame)
	if verdict != xdpRedirect {
		s.t.Errorf("%s: verdict %d, want redirect", what, verdict)
	} else if !bytes.Equal(out, frame[innerEth:]) {
		s.t.Errorf("%s: %x\nis not the inner frame of\n%x", what, out, frame)
	}
}

// stays sends one that is to take the full path.
func (s *straight) stays(what string, frame []byte) {
	s.t.Helper()
	verdict, out := s.send(frame)
	if verdict != xdpPass {
		s.t.Errorf("%s: verdict %d, want pass", what, verdict)
	}
	if !bytes.Equal(out, frame) {
		s.t.Errorf("%s: the frame is changed:\n%x\n%x", what, frame, out)
	}
}

// onItsPath brings a flow to its path.
func (s *straight) onItsPath(frame []byte) {
	s.t.Helper()
	s.stays("a new flow", frame)
	s.poll(expressPause + 1)
	s.goes("the pause is over", frame)
	if s.t.Failed() {
		s.t.FailNow()
	}
}

// took is what became of counters in between.
func (s *straight) took(was Counters) (straight, left, changed uint64) {
	s.t.Helper()
	now, err := s.Counters()
	s.must(err)
	return now.Express - was.Express, now.ExpressLeft - was.ExpressLeft, now.LaneChanges - was.LaneChanges
}

func (s *straight) counted(what string, was Counters, straight, left, changed uint64) {
	s.t.Helper()
	if a, b, c := s.took(was); a != straight || b != left || c != changed {
		s.t.Errorf("%s: %d frames went straight, %d times a flow left at once, %d times in order; want %d, %d, %d", what, a, b, c, straight, left, changed)
	}
}

func (s *straight) slotAt(stage Stage, frame []byte) (key uint32, v stagesOlSlot) {
	s.t.Helper()
	key = s.slotKey(s.slotOf(classify(s.t, frame))) + uint32(stage)*uint32(stagesOlLimitOL_SLOTS)
	s.must(s.stages.OlSlots.Lookup(key, &v))
	return key, v
}

func (s *straight) lane(what string, frame []byte, want uint8) {
	s.t.Helper()
	if _, v := s.slotAt(NIC, frame); v.Lane != want {
		s.t.Errorf("%s: the slot is on lane %#x, want %#x", what, v.Lane, want)
	}
}

// withdrawn has the path be withdrawn for so long.
func (s *straight) withdrawn(ago time.Duration) {
	s.t.Helper()
	var v underlayOlExpressEntry
	s.must(s.xdp.OlExpressEntries.Lookup(s.key.abi(), &v))
	if v.Withdrawn == 0 {
		s.t.Fatal("the path is not withdrawn")
	}
	now, err := Now()
	v.Withdrawn = now - uint64(ago)
	s.must(err, s.xdp.OlExpressEntries.Put(s.key.abi(), v))
}

// plain is a frame of a flow of its own that may go straight.
func plain(port uint16) []byte {
	return tunnelled(packet.IPv4{}, packet.UDP{Src: port, Dst: 9}, packet.Bytes(64))
}

// changed is the frame with its outer header's checksum right again.
func changed(frame []byte, change func(f []byte)) []byte {
	f := slices.Clone(frame)
	change(f)
	mend(f[outerIP:])
	if binary.BigEndian.Uint16(f[innerIP-2:]) == 0x0800 {
		mend(f[innerIP:])
	}
	return f
}

// mend makes the checksum of an IPv4 header without options right.
func mend(ip []byte) {
	binary.BigEndian.PutUint16(ip[10:], 0)
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
}

// A flow is let go straight to its pod once its pause is over and nothing of it is on the full
// path, at any of its hops.
func TestAFlowGoesStraightOnceNothingOfItIsOnTheFullPath(t *testing.T) {
	s := newStraight(t, 0)
	f := plain(1)
	was, err := s.Counters()
	s.must(err)
	s.stays("a new flow", f)
	s.poll(expressPause)
	s.stays("the pause is not over", f)
	s.lane("in the pause", f, LaneLocal)
	s.later(1)
	s.stays("what passed is not known to be handed on", f)
	s.poll(1)
	s.cpu(func(c *stagesOlCpu) { c.Softnet = 0 })
	s.stays("of the backlog nothing is known", f)
	for _, stage := range []Stage{Tunnel, Pod} {
		s.poll(1)
		key, v := s.slotAt(stage, f)
		s.cpu(func(c *stagesOlCpu) { v.Seq, v.Lane = c.Seq, LaneLocal })
		var owner [Stages + 1]uint16
		slot := s.slotOf(classify(t, f))
		s.must(s.stages.OlOwners.Lookup(slot, &owner))
		owner[stage] = uint16(s.core + 1)
		s.must(s.stages.OlOwners.Put(slot, owner), s.stages.OlSlots.Put(key, v))
		s.stays(fmt.Sprintf("a packet of it is on its way at the %s stage", stage), f)
	}
	s.lane("held", f, LaneLocal)
	s.counted("held", was, 0, 0, 0)
	s.poll(1)
	s.goes("nothing of it is left", f)
	s.lane("let go", f, laneExpress)
	s.counted("let go", was, 1, 0, 1)
	s.goes("the second of a poll", f)
	s.poll(1)
	s.goes("the next poll", f)
	s.counted("going", was, 3, 0, 1)

	s.must(s.SetExpress(false))
	s.drained(s.port, true)
	s.poll(1)
	s.stays("nothing may go straight", f)
}

// What the stack would not hand on as it is, it gets to see.
func TestAFrameThatIsNotPlainTakesTheFullPathAndItsFlowWithIt(t *testing.T) {
	long := func(extra int) func(uint16) []byte {
		return func(port uint16) []byte {
			return tunnelled(packet.IPv4{}, packet.UDP{Src: port, Dst: 9}, packet.Bytes(longest-14-20-8+extra))
		}
	}
	edit := func(change func(f []byte)) func(uint16) []byte {
		return func(port uint16) []byte { return changed(plain(port), change) }
	}
	cases := []struct {
		name, reason string
		frame        func(port uint16) []byte
	}{
		{"for another NIC's address", "nic-address", edit(func(f []byte) { f[5]++ })},
		{"outer congestion mark", "outer-headers", edit(func(f []byte) { f[outerIP+1] |= 3 })},
		{"outer header's sum", "outer-headers", func(port uint16) []byte {
			f := plain(port)
			f[outerIP+10] ^= 1
			return f
		}},
		{"bytes behind the outer packet", "outer-headers", func(port uint16) []byte { return append(plain(port), 0, 0, 0, 0) }},
		{"outer UDP length", "outer-headers", edit(func(f []byte) { f[outerUDP+5]-- })},
		{"for another outer address", "outer-headers", edit(func(f []byte) { f[outerIP+19]++ })},
		{"from our own outer address", "outer-headers", edit(func(f []byte) { f[outerIP+15] = 2 })},
		{"outer checksum", "outer-checksum", edit(func(f []byte) { f[outerUDP+6] = 1 })},
		{"from the tunnel itself", "inner-frame", edit(func(f []byte) { copy(f[innerEth+6:], tunnelMAC[:]) })},
		{"from a group", "inner-frame", edit(func(f []byte) { f[innerEth+6] |= 1 })},
		{"from address zero", "inner-frame", edit(func(f []byte) { clear(f[innerEth+6 : innerEth+12]) })},
		{"fragment", "inner-headers", func(port uint16) []byte {
			return tunnelled(packet.IPv4{ID: 7, More: true}, packet.UDP{Src: port, Dst: 9}, packet.Bytes(64))
		}},
		{"inner options", "inner-headers", func(port uint16) []byte {
			return tunnelled(packet.IPv4{Options: 4}, packet.UDP{Src: port, Dst: 9}, packet.Bytes(64))
		}},
		{"bytes behind the inner packet", "inner-headers", edit(func(f []byte) { f[innerIP+3] -= 4 })},
		{"inner UDP length", "inner-headers", edit(func(f []byte) { f[innerUDP+5]-- })},
		{"too long", "too-long", long(1)},
	}
	s := newStraight(t, 0)
	for i, c := range cases {
		port := uint16(i + 1)
		f, bad := plain(port), c.frame(port)
		if s.slotOf(classify(t, f)) != s.slotOf(classify(t, bad)) {
			t.Fatalf("%s: not of the flow", c.name)
		}
		s.forget(t, s.slotOf(classify(t, f)))
		s.onItsPath(f)
		was, err := s.Counters()
		s.must(err)
		unfit, err := s.ExpressUnfit()
		s.must(err)
		s.poll(1)
		if i%2 == 0 {
			// In the middle of a poll, where the slot's lane is not looked at again.
			s.goes(c.name+": the frame before", f)
			was, err = s.Counters()
			s.must(err)
		}
		s.stays(c.name, bad)
		s.lane(c.name, f, LaneLocal)
		s.counted(c.name, was, 0, 1, 0)
		now, err := s.ExpressUnfit()
		s.must(err)
		for _, reason := range unfitNames {
			want := unfit[reason]
			if reason == c.reason {
				want++
			}
			if now[reason] != want {
				t.Errorf("%s: counted as %s: %d, want %d", c.name, reason, now[reason], want)
			}
		}
		s.stays(c.name+": the next frame", f)
		s.poll(expressPause)
		s.stays(c.name+": at the end of the pause", f)
		s.poll(1)
		s.stays(c.name+", with the pause over", bad)
		s.poll(expressPause)
		s.stays(c.name+": at the end of another pause", f)
		s.poll(1)
		s.goes(c.name+": behind the pause", f)
		if t.Failed() {
			t.FailNow()
		}
	}
	// The longest that may.
	f := long(0)(99)
	s.forget(t, s.slotOf(classify(t, f))) // it may be that of a flow above
	s.onItsPath(f)
	s.poll(1)
	s.goes("as long as may be", f)
}

func TestAWithdrawnEntryIsLeftInOrderOrAtOnce(t *testing.T) {
	t.Run("not drained", func(t *testing.T) {
		s := newStraight(t, 0)
		f := plain(1)
		s.onItsPath(f)
		s.must(s.WithdrawPath(s.key))
		// As long as the machine takes no longer between two lines of this.
		for try := 0; ; try++ {
			begin, err := Now()
			s.must(err)
			s.withdrawn(0)
			was, err := s.Counters()
			s.must(err)
			s.poll(1)
			verdict, out := s.send(f)
			end, err := Now()
			s.must(err)
			if time.Duration(end-begin) < expressLeave {
				if verdict != xdpRedirect || !bytes.Equal(out, f[innerEth:]) {
					t.Errorf("withdrawn for less than %v: verdict %d", expressLeave, verdict)
				}
				s.counted("not drained", was, 1, 0, 0)
				break
			}
			if try == 100 {
				t.Fatalf("one frame took %v", time.Duration(end-begin))
			}
			s.must(s.ClosePath(s.key), s.AddPath(s.key, s.path))
			s.forget(t, s.slotOf(classify(t, f)))
			s.onItsPath(f)
			s.must(s.WithdrawPath(s.key))
		}
		was, err := s.Counters()
		s.must(err)
		s.withdrawn(expressLeave + time.Millisecond)
		s.stays("withdrawn for long, within the poll", f)
		s.lane("withdrawn for long", f, LaneLocal)
		s.counted("withdrawn for long", was, 0, 1, 0)
		s.poll(10 * expressPause)
		s.stays("withdrawn for long, later", f)
		// Open again.
		s.must(s.AddPath(s.key, s.path))
		s.poll(1)
		s.goes("open again", f)
	})
	t.Run("drained", func(t *testing.T) {
		s := newStraight(t, 0)
		f := plain(1)
		s.onItsPath(f)
		s.must(s.WithdrawPath(s.key))
		s.drained(s.port, true)
		was, err := s.Counters()
		s.must(err)
		s.poll(1)
		s.stays("the pod's ring is empty", f)
		s.counted("in order", was, 0, 0, 1)
		s.lane("in order", f, LaneLocal)
	})
	t.Run("not for new flows", func(t *testing.T) {
		s := newStraight(t, 0)
		s.must(s.WithdrawPath(s.key))
		s.stays("a new flow", plain(1))
		s.poll(10 * expressPause)
		s.withdrawn(0)
		s.stays("long behind the pause", plain(1))
	})
}

func TestWithoutAnEntryOrItsDeviceFramesTakeTheFullPath(t *testing.T) {
	t.Run("closed", func(t *testing.T) {
		s := newStraight(t, 0)
		f := plain(1)
		s.onItsPath(f)
		was, err := s.Counters()
		s.must(err, s.ClosePath(s.key))
		s.poll(1)
		s.stays("the path is closed", f)
		s.counted("the path is closed", was, 0, 0, 0) // whose flow is no longer known
		s.drained(s.port, true)
		s.poll(1)
		s.stays("the path is closed, and its pod's ring empty", f)
		s.lane("the path is closed, and its pod's ring empty", f, LaneLocal)
		s.counted("the path is closed, and its pod's ring empty", was, 0, 0, 1)
		var device uint32
		if err := s.xdp.OlExpressPorts.Lookup(s.port, &device); !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Errorf("the port of a closed path: %d, %v", device, err)
		}
	})
	t.Run("one of two", func(t *testing.T) {
		s := newStraight(t, 0)
		other := s.key
		other.VNI++
		f := plain(1)
		s.must(s.AddPath(other, s.path))
		s.onItsPath(f)
		s.must(s.ClosePath(other))
		s.poll(1)
		s.goes("another path to that pod is closed", f)
	})
	t.Run("no device", func(t *testing.T) {
		s := newStraight(t, 0)
		f := plain(1)
		s.onItsPath(f)
		s.goes("the second, whose head is kept", f)
		in(t, s.host, "ip", "link", "del", "pod0")
		was, err := s.Counters()
		s.must(err)
		s.stays("the device is gone, within the run", f)
		s.poll(1)
		s.stays("the device is gone", f)
		s.counted("the device is gone", was, 0, 1, 0)
	})
	t.Run("another key", func(t *testing.T) {
		s := newStraight(t, 0)
		for i, change := range []func(f []byte){
			func(f []byte) { f[innerEth+5]++ },
			func(f []byte) { f[vxlan+6]++ },
		} {
			f := changed(plain(uint16(i+1)), change)
			s.send(f)
			s.poll(expressPause + 1)
			s.stays("no path leads there", f)
		}
	})
}

// The stack learns which hosts send: it sees a frame of each sender before others go
// straight, from time to time after that, and whenever one comes by another host.
func TestTheStackSeesWhoSends(t *testing.T) {
	const refresh = time.Minute
	s := newStraight(t, refresh)
	f := plain(1)
	from := func(host byte) []byte { return changed(f, func(f []byte) { f[outerIP+15] = host }) }
	s.onItsPath(f)
	s.drained(s.port, true)

	s.poll(1)
	was, err := s.Counters()
	s.must(err)
	s.stays("the sender is behind another host", from(7))
	s.counted("behind another host", was, 0, 1, 0)
	s.stays("the next one from there", from(7))
	s.poll(expressPause + 1)
	s.goes("from there, behind the pause", from(7))
	s.poll(1)
	s.stays("behind the host where it was", f)
	s.poll(expressPause + 1)
	s.goes("from there again", f)

	// Of a sender that the stack has not seen for so long.
	var key underlayOlSenderKey
	key.Vni, key.Port = s.key.VNI, s.key.Port
	copy(key.Mac[:], f[innerEth+6:])
	var known underlayOlSender
	s.must(s.xdp.OlExpressSenders.Lookup(key, &known))
	known.Seen -= uint32(refresh/time.Microsecond) + 1
	s.must(s.xdp.OlExpressSenders.Put(key, known))
	s.poll(1)
	s.goes("found to be due, with the frame on its way", f)
	s.poll(1)
	was, err = s.Counters()
	s.must(err)
	s.stays("due", f)
	s.counted("due", was, 0, 0, 1)
	s.poll(expressPause + 1)
	s.goes("seen again", f)
	s.must(s.xdp.OlExpressSenders.Lookup(key, &known))
	now, err := Now()
	s.must(err)
	if ago := uint32(now/1000) - known.Seen; time.Duration(ago)*time.Microsecond > refresh/2 {
		t.Errorf("the stack has seen a frame, noted is one of %d us ago", ago)
	}

	// Of one that is forgotten: the map keeps those that were asked for last.
	s.must(s.xdp.OlExpressSenders.Delete(key))
	s.poll(1)
	s.goes("found to be forgotten, with the frame on its way", f)
	s.poll(1)
	s.stays("forgotten", f)
	s.must(s.xdp.OlExpressSenders.Lookup(key, &known))
}

// Once the program was taken off and is there again, no program knows where frames have gone.
func TestAPathTakenBeforeTheProgramCameAnewIsLeft(t *testing.T) {
	s := newStraight(t, 0)
	f := plain(1)
	attach := func() {
		t.Helper()
		l, err := s.AttachXDP(s.path.Host)
		s.must(err)
		s.must(l.Close())
	}
	attach()
	s.onItsPath(f)
	attach()
	was, err := s.Counters()
	s.must(err)
	s.poll(1)
	s.stays("the program is there anew", f)
	s.lane("the program is there anew", f, LaneLocal)
	s.counted("the program is there anew", was, 0, 0, 0) // it has not left: it never was, as far as is known
	s.poll(expressPause)
	s.stays("at the end of the pause", f)
	s.poll(1)
	s.goes("behind the pause", f)
}

// blind deletes the path from the map without telling the program: a frame that still takes it does
// so without another look.
func (s *straight) blind() {
	s.t.Helper()
	s.must(s.xdp.OlExpressEntries.Delete(s.key.abi()))
}

// nextOf is the next frame of a flow's run.
func nextOf(f []byte, payload int) []byte {
	g := append(slices.Clone(f[:runHead]), packet.Bytes(payload)...)
	g[innerIP+5]++
	binary.BigEndian.PutUint16(g[innerIP+2:], uint16(len(g)-innerIP))
	binary.BigEndian.PutUint16(g[innerUDP+4:], uint16(len(g)-innerUDP))
	binary.BigEndian.PutUint16(g[outerUDP+4:], uint16(len(g)-outerUDP))
	return changed(g, func(g []byte) {
		g[outerIP+5]++
		binary.BigEndian.PutUint16(g[outerIP+2:], uint16(len(g)-outerIP))
	})
}

func TestTheNextOfARunGoesTheWayOfTheOneBefore(t *testing.T) {
	s := newStraight(t, 0)
	f := plain(1)
	s.onItsPath(f)
	s.goes("the second of a run", f)
	s.blind()
	was, err := s.Counters()
	s.must(err)
	lasts := make([]underlayOlExpressLast, s.CPUs())
	s.must(s.xdp.OlExpressLasts.Lookup(uint32(0), &lasts))
	kept := lasts[s.core]
	slotKey, slot := s.slotAt(NIC, f)
	restore := func() {
		t.Helper()
		lasts[s.core] = kept
		s.must(s.xdp.OlExpressLasts.Put(uint32(0), lasts), s.stages.OlSlots.Put(slotKey, slot))
	}
	for _, payload := range []int{64, 0, 1, longest - 42} {
		s.goes(fmt.Sprintf("the next, of %d bytes", payload), nextOf(f, payload))
	}
	if a, left, _ := s.took(was); a != 4 || left != 0 {
		t.Errorf("of 4 frames of a run %d went straight", a)
	}
	if now, err := s.Counters(); err != nil || now.XDPOverlay-was.XDPOverlay != 4 {
		t.Errorf("of 4 frames for a tunnel %d were counted, %v", now.XDPOverlay-was.XDPOverlay, err)
	}
	s.stays("longer than may be", nextOf(f, longest-41))

	free := []int{outerIP + 2, outerIP + 4, outerIP + 10, outerUDP + 4, innerIP + 2, innerIP + 4, innerIP + 10}
	for at := range runLength {
		if slices.Contains(free, at&^1) {
			continue
		}
		for _, bit := range []byte{1, 0x80} {
			restore()
			s.stays(fmt.Sprintf("byte %d is another", at), changed(nextOf(f, 64), func(f []byte) { f[at] ^= bit }))
		}
	}
	for _, at := range []int{outerIP + 2, outerUDP + 4, innerIP + 2, innerUDP + 4} {
		for _, by := range []uint16{1, 0xffff, 0x100} {
			restore()
			s.stays(fmt.Sprintf("length at %d", at), changed(nextOf(f, 64), func(f []byte) {
				binary.BigEndian.PutUint16(f[at:], binary.BigEndian.Uint16(f[at:])+by)
			}))
		}
	}
	restore()
	sum := nextOf(f, 64)
	sum[outerIP+10] ^= 1
	s.stays("outer header's sum", sum)
	restore()
	sum = nextOf(f, 64)
	sum[innerIP+10] ^= 1
	s.stays("inner header's sum", sum)
	restore()
	s.stays("cut", nextOf(f, 64)[:runHead+60])
	restore()
	s.stays("with bytes behind it", append(nextOf(f, 64), 0))
	restore()
	s.goes("once more", nextOf(f, 64))
}

// A run is over where something was found out since that could matter to it.
func TestARunEndsWithWhatItWasJudgedBy(t *testing.T) {
	for _, c := range []struct {
		name  string
		blind bool // a look at the path would not be needed for that
		end   func(*straight)
	}{
		{"another poll", true, func(s *straight) { s.later(1) }},
		{"the paths changed", true, func(s *straight) { s.must(s.pathsChanged()) }},
		{"nothing may go straight", true, func(s *straight) { s.must(s.SetExpress(false)) }},
		{"a frame is not plain", false, func(s *straight) { s.stays("not plain", append(plain(1), 0)) }},
		{"the path is withdrawn", false, func(s *straight) {
			s.must(s.WithdrawPath(s.key))
			s.withdrawn(expressLeave + time.Millisecond)
		}},
		{"the path is closed", false, func(s *straight) { s.must(s.ClosePath(s.key)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStraight(t, 0)
			f := plain(1)
			s.onItsPath(f)
			s.goes("the second", f)
			if c.blind {
				s.blind()
			}
			s.goes("the third", nextOf(f, 10))
			c.end(s)
			s.stays("the next", nextOf(f, 10))
		})
	}
}

// In a trial flows leave their paths in order, however long that takes, and come back.
func TestHeldFlowsLeaveInOrderOnly(t *testing.T) {
	s := newStraight(t, 0)
	f := plain(1)
	s.onItsPath(f)
	was, err := s.Counters()
	s.must(err)
	s.must(s.HoldExpress(true))
	s.drained(s.portOf(s.path.Pod), false)
	for range 3 {
		s.poll(10 * expressLeave)
		s.goes("held, and not drained", f)
	}
	s.drained(s.portOf(s.path.Pod), true)
	s.handedOn()
	s.poll(1)
	s.stays("held, and drained", f)
	s.lane("held, and drained", f, LaneLocal)
	s.counted("held", was, 3, 0, 1)
	s.poll(10 * expressPause)
	s.stays("held, later", f)
	s.must(s.HoldExpress(false))
	s.handedOn()
	s.poll(1)
	s.goes("let go", f)
}

// A tunnel that was told behind which host a sender is drops what comes from another one.
func TestASenderIsWhereTheTunnelWasToldThatItIs(t *testing.T) {
	s := newStraight(t, 0)
	f := plain(1)
	s.onItsPath(f)
	who := Sender{VNI: s.key.VNI, Port: s.key.Port, MAC: [6]byte(f[innerEth+6 : innerEth+12])}
	here := netip.AddrFrom4([4]byte(f[outerIP+12 : outerIP+16]))
	s.path.Fixed = true
	s.must(s.AddPath(s.key, s.path), s.FixSenders(map[Sender]netip.Addr{who: here}))
	s.poll(1)
	s.goes("from the host that it is behind", f)
	for _, elsewhere := range []netip.Addr{here.Next(), {}} {
		s.must(s.FixSenders(map[Sender]netip.Addr{who: elsewhere}))
		s.poll(1)
		s.stays("from another host", f)
		s.poll(10 * expressPause)
		s.stays("from another host, later", f)
	}
	if unfit, err := s.ExpressUnfit(); err != nil || unfit["other-host"] != 4 {
		t.Errorf("unfit: %v, %v", unfit, err)
	}
	s.must(s.FixSenders(nil))
	s.handedOn()
	s.poll(10 * expressPause)
	s.goes("the tunnel was told nothing", f)
}
