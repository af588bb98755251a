// SPDX-License-Identifier: Apache-2.0

package order

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/e2e/rig"
)

// group are UDP sockets in a pod that share a port. A classic BPF program chooses among them, by skb->hash.
type group struct {
	t       *testing.T
	sockets []int       // in the receiver's pod
	flows   []int       // connected to them, in the sender's
	of      map[int]int // the socket that had a flow last
}

const groupPort = 7000

func newGroup(t *testing.T, b *bed.Bed, sockets, flows int) *group {
	t.Helper()
	f := &group{t: t, of: map[int]int{}}
	open := func(in *netns.Handle, prepare func(fd int) error) int {
		t.Helper()
		fd := -1
		err := in.Do(func() (err error) {
			if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
				return err
			}
			return prepare(fd)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	to := &unix.SockaddrInet4{Port: groupPort, Addr: b.Receiver().Pods[0].IP4.As4()}
	for range sockets {
		f.sockets = append(f.sockets, open(b.Receiver().Pods[0].NS, func(fd int) error {
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1), unix.Bind(fd, to))
		}))
	}
	const hash = 1<<32 - 0x1000 + 32 // SKF_AD_OFF + SKF_AD_RXHASH
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: hash},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: uint32(sockets)},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
	if err := unix.SetsockoptSockFprog(f.sockets[0], unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}); err != nil {
		t.Fatal(err)
	}
	for range flows {
		f.flows = append(f.flows, open(b.Sender().Pods[0].NS, func(fd int) error { return unix.Connect(fd, to) }))
	}
	return f
}

// round sends a datagram of each flow, and awaits them. It returns how many flows have changed their socket, and how
// many sockets had some.
func (f *group) round() (moves, used int) {
	f.t.Helper()
	for id, fd := range f.flows {
		if _, err := unix.Write(fd, []byte{byte(id)}); err != nil {
			f.t.Fatal(err)
		}
	}
	had := map[int]bool{}
	for missing, until := len(f.flows), time.Now().Add(rig.Patience); missing > 0; {
		var ready []unix.PollFd
		for _, fd := range f.sockets {
			ready = append(ready, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
		if _, err := unix.Poll(ready, 1000); err != nil && !errors.Is(err, unix.EINTR) || time.Now().After(until) {
			f.t.Fatalf("%d datagrams did not come: %v", missing, err)
		}
		for i, fd := range f.sockets {
			var b [2]byte
			for {
				if n, err := unix.Read(fd, b[:]); err != nil || n != 1 {
					break
				}
				missing--
				id := int(b[0])
				if was, known := f.of[id]; known && was != i {
					moves++
				}
				f.of[id], had[i] = i, true
			}
		}
	}
	return moves, len(had)
}

// rounds is so many of them: the moves of all, and the sockets of the last.
func (f *group) rounds(n int) (moves, used int) {
	f.t.Helper()
	for range n {
		more, had := f.round()
		moves, used = moves+more, had
	}
	return moves, used
}

// Programs in pods choose sockets by skb->hash, by which the pipeline chooses cores. A flow changes its socket when the
// pipeline comes, at most, and not when it changes its lane, nor while it stays on a core that is one.
func TestSocketsThatAreChosenByHashKeepTheirFlows(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{})
	f := newGroup(t, b, 6, 32)
	if moves, _ := f.rounds(100); moves > 0 {
		t.Fatalf("without the pipeline %d moves", moves)
	}
	l := rig.StartSteady(t, b, 2)
	p, err := start(t, b, tc)
	if err != nil {
		t.Fatal(err)
	}
	came, _ := f.round()
	if err := p.resteer(true); err != nil {
		t.Fatal(err)
	}
	st, err := p.status()
	if err != nil {
		t.Fatal(err)
	}
	before := st.Counters.LaneChanges
	moves, used := f.rounds(300)
	if st, err = p.status(); err != nil {
		t.Fatal(err)
	}
	changes := st.Counters.LaneChanges - before
	t.Logf("%d flows moved when the pipeline came; then %d moves in %d changes of lanes; the flows are on %d sockets",
		came, moves, changes, used)
	if changes == 0 {
		t.Error("no flow has changed its lane")
	}
	if moves > 0 {
		t.Errorf("%d flows have moved to other sockets", moves)
	}
	if used < 3 {
		t.Errorf("the flows are on %d of %d sockets", used, len(f.sockets))
	}
	if err := p.end(); err != nil {
		t.Error(err)
	}
	l.Stop()
}
