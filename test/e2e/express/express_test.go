// SPDX-License-Identifier: Apache-2.0

// Package express tests that `express: auto` puts its program on a NIC only where that pays, and takes
// it off again where it does not.
package express

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

func TestMain(m *testing.M) { rig.Main(m) }

const auto = "pipeline: off\nmetrics: off\nmicroflows: {mode: off}\nexpress: auto\n"

// of is express in a status.
func of(t *testing.T, d *rig.Daemon) (control.Mechanism, control.Status) {
	t.Helper()
	st, err := d.Peek()
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Log())
	}
	for _, m := range st.Mechanisms {
		if m.Name == "express" {
			return m, st
		}
	}
	t.Fatalf("no express in %+v", st.Mechanisms)
	return control.Mechanism{}, st
}

// program tells whether an XDP program is on the receiver's NIC.
func program(t *testing.T, b *bed.Bed) bool {
	t.Helper()
	nl := rig.In(t, b.Receiver().NS)
	defer nl.Close()
	l, err := nl.LinkByName(b.Receiver().Wire)
	if err != nil {
		t.Fatal(err)
	}
	x := l.Attrs().Xdp
	return x != nil && x.Attached
}

// verdict waits for that of a trial.
func verdict(t *testing.T, d *rig.Daemon) (v control.Trial) {
	t.Helper()
	rig.Until(t, "a trial of express ends", func() (bool, string) {
		m, st := of(t, d)
		for _, tr := range st.Trials {
			if tr.Mechanism == "express" {
				v = tr
			}
		}
		return v.Mechanism != "", fmt.Sprintf("%+v\n%s", m, d.Log())
	})
	return v
}

// leaves waits until it is away without a trace, and says why.
func leaves(t *testing.T, b *bed.Bed, d *rig.Daemon) (reason string) {
	t.Helper()
	rig.Until(t, "express has left the NIC", func() (bool, string) {
		m, _ := of(t, d)
		reason = m.Reason
		on := program(t, b)
		return m.State == control.Standby && !on, fmt.Sprintf("%+v, program: %t\n%s", m, on, d.Log())
	})
	d.Says("express standby")
	return reason
}

func stop(t *testing.T, d *rig.Daemon) {
	t.Helper()
	d.Verb("off")
	d.GoneBoth()
	d.NothingLeft()
}

// Beside TCP only, its program never comes.
func TestTCPBringsNoProgram(t *testing.T) {
	speed.Long(t)
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{})
	var carried atomic.Uint64
	for range 4 {
		stream(t, b, &carried)
	}
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: auto})
	rig.Until(t, "it knows that frames could go straight to the pod", func() (bool, string) {
		m, st := of(t, d)
		return len(st.Express) == 1 && st.Express[0].Reason == "" && !strings.Contains(m.Reason, "hardly a packet"), fmt.Sprintf("%+v %+v\n%s", m, st.Express, d.Log())
	})
	const much = 1 << 30
	from := carried.Load()
	rig.Until(t, "TCP goes on", func() (bool, string) {
		n := carried.Load() - from
		return n > much, fmt.Sprint(n)
	})
	if m, st := of(t, d); m.State != control.Standby || st.Counters.ExpressPackets > 0 {
		t.Errorf("%+v, %d frames went straight", m, st.Counters.ExpressPackets)
	}
	if program(t, b) || strings.Contains(d.Log(), "XDP program attached") {
		t.Errorf("a program was on the NIC:\n%s", d.Log())
	}
	stop(t, d)
}

// stream sends by a TCP connection from pod to pod until the test ends.
func stream(t *testing.T, b *bed.Bed, carried *atomic.Uint64) {
	t.Helper()
	from, to := b.Sender().Pods[0], b.Receiver().Pods[0]
	var l net.Listener
	err := to.NS.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(to.IP4, 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var tx net.Conn
	err = from.NS.Do(func() (err error) {
		tx, err = net.Dial("tcp", l.Addr().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	rx, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{}, 2)
	go func() { io.Copy(counter{carried}, rx); done <- struct{}{} }()
	go func() { io.Copy(tx, zeros{}); done <- struct{}{} }()
	t.Cleanup(func() {
		for _, c := range []io.Closer{tx, rx, l} {
			c.Close()
		}
		<-done
		<-done
	})
}

// counter counts what is written to it.
type counter struct{ n *atomic.Uint64 }

func (c counter) Write(p []byte) (int, error) { c.n.Add(uint64(len(p))); return len(p), nil }

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// Where a reader cannot keep up, more frames at its socket are no gain, however fast the machine is: the trial does
// not find that it pays, the program leaves, and the reader goes on.
func TestAReaderThatCannotKeepUpGainsNothing(t *testing.T) {
	rig.NeedCores(t, 2)
	speed.Turn(t)
	b := rig.Lab(t, bed.Options{})
	read := startSlowReader(t, b)
	start := func() (*rig.Daemon, control.Trial) {
		d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: auto + "aggregate: auto\n"})
		return d, verdict(t, d)
	}
	d, v := start()
	if v.Verdict == "better" { // as chance has it in one of a hundred trials
		stop(t, d)
		if d, v = start(); v.Verdict == "better" {
			t.Fatalf("%+v\n%s", v, d.Log())
		}
	}
	t.Log(leaves(t, b, d))
	from := read.Load()
	rig.Until(t, "the reader goes on", func() (bool, string) {
		n := read.Load() - from
		return n > 100, fmt.Sprint(n)
	})
	stop(t, d)
}

// A core that datagrams saturate takes more of them by the shorter path, at a socket at which no
// thread waits for a core. It stays on the NIC, and goes with the traffic.
//
// Of the tests here this one alone asserts a gain, which foreign load on the cores can take away.
func TestWhereItPaysItStays(t *testing.T) {
	speed.Long(t)
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{})
	l := rig.StartFlood(t, b, 1)
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: auto + "aggregate: off\n"})
	v := verdict(t, d)
	t.Logf("%+v", v)
	if v.Verdict != "better" {
		t.Fatalf("%+v\n%s", v, d.Log())
	}
	_, st := of(t, d)
	const many = 1_000_000
	first := st.Counters.ExpressPackets
	rig.Until(t, "frames go straight to the pod", func() (bool, string) {
		m, st := of(t, d)
		// What looked worse for a second is tried again: that trial has to be over.
		return st.Counters.ExpressPackets > first+many && m.State == control.Active && !m.Trying && program(t, b), fmt.Sprintf("%+v\n%s", m, d.Log())
	})
	l.Stop()
	if reason := leaves(t, b, d); !strings.Contains(reason, "hardly a frame went straight") {
		t.Errorf("it left, and says %q", reason)
	}
	stop(t, d)
}
