// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/nics"
	"github.com/overlane/overlane/test/residue"
)

var (
	nic   = flag.String("nic", "", "what the NIC is called: for emulated machines")
	how   = flag.String("how", string(nics.Plain), "plain, bond or VLAN")
	mtu   = flag.Int("mtu", 1500, "of the wire")
	names = flag.String("mechanisms", "", "those to try, separated by commas; none: all")
)

func TestMain(m *testing.M) { rig.Main(m) }

// mechanism is a configuration, and how counters tell that it acts.
type mechanism struct {
	name   string // of the row
	key    string // of the configuration, and in status
	config string
	load   []nics.Load
	acts   func(control.Counters) bool
	refuse bool // without the mechanism the daemon does not start
}

var (
	// Datagrams that come in a row, in flows that are numbered.
	rows = nics.Load{Flows: 2, Burst: 16, Size: 200, Every: 40 * time.Millisecond, Port: nics.LoadPort}
	// What wakes a daemon.
	crowds = nics.Load{Flows: 2, Burst: 100, Size: 100, Every: 20 * time.Millisecond, Port: nics.UnreadPort}
	// What makes a core short of time, on fast machines, too, by polls that are full, and cannot be
	// mended by joining datagrams.
	ragged = nics.Load{Flows: 2, Burst: 250, Size: 600, Every: 25 * time.Millisecond, Port: nics.UnreadPort, Ragged: true}
	bulk   = nics.Load{Flows: 1, Burst: 1, Size: 32 << 10, Every: 40 * time.Millisecond, Port: nics.TCPPort, TCP: true}
)

const alone = "metrics: off\n"

// but is a configuration with one mechanism, the keys of which are given.
func but(keys string) string {
	text := alone + keys
	for _, off := range []string{"pipeline: off\n", "microflows: {mode: off}\n", "priority: {mode: off}\n", "aggregate: off\n"} {
		if key, _, _ := strings.Cut(off, ":"); !strings.Contains("\n"+keys, "\n"+key+":") {
			text += off
		}
	}
	return text
}

const more = 200 // packets, by which it is seen that a mechanism acts

var mechanisms = []mechanism{
	// With the load that has it want priority.
	{name: "default", key: "priority", load: []nics.Load{ragged}, config: alone + "aggregate: auto\n"},
	{name: "pipeline", key: "pipeline", load: []nics.Load{rows}, config: but("pipeline: forced\ntier: tc\n"), acts: steers},
	{name: "tier xdp", key: "pipeline", load: []nics.Load{rows}, config: but("pipeline: forced\ntier: xdp\n"), acts: steers, refuse: true},
	{name: "aggregate", key: "aggregate", load: []nics.Load{rows}, config: but("aggregate: forced\n"),
		acts: func(c control.Counters) bool { return c.AggregatedPackets > more }},
	{name: "express", key: "express", load: []nics.Load{crowds}, config: but("express: forced\n"),
		acts: func(c control.Counters) bool { return c.ExpressPackets > more }},
	{name: "priority", key: "priority", load: []nics.Load{rows},
		config: but(fmt.Sprintf("priority: {rules: [{name: stream, proto: udp, port: %d}]}\n", nics.StreamPort)),
		acts:   func(c control.Counters) bool { return c.LatencyPackets > more && c.BulkPackets > more }},
	{name: "microflows", key: "microflows", load: []nics.Load{rows, bulk},
		// An emulated core stands still for longer than packets wait by default.
		config: but("microflows: {mode: forced, batch: 8, elephant: 300kbit, hold: 1s}\n"),
		acts:   func(c control.Counters) bool { return c.SplitPackets > more }},
}

func steers(c control.Counters) bool { return c.SteeredPackets > more }

const (
	settled = 2 * time.Second  // of each phase: what a link needs to come back
	idle    = 25 * time.Second // for how long a daemon is watched that does not act
	actsIn  = 90 * time.Second // by when one acts that says that it does
)

// bed is the machine with its streams.
type bed struct {
	*node
	far    *nics.Far
	stream *nics.Receiver
	sender *nics.Sender // of the one to the far end
	load   *nics.Receiver
	root   *netns.Handle
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNIC(t *testing.T) {
	if *nic == "" {
		t.Skip("needs an emulated machine: make nics")
	}
	b := lay(t)
	for _, m := range mechanisms {
		if *names == "" || strings.Contains(","+*names+",", ","+m.name+",") {
			t.Run(m.name, func(t *testing.T) {
				row := b.try(t, m)
				text, err := json.Marshal(row)
				must(t, err)
				t.Logf("%s%s", nics.Mark, text)
				b.judge(t, m, row)
			})
		}
	}
}

func lay(t *testing.T) *bed {
	b := &bed{}
	var err error
	b.node, err = build(nics.How(*how), *mtu)
	must(t, err)
	b.root, err = netns.Current()
	must(t, err)
	must(t, b.pod.Do(func() error {
		if b.stream, err = nics.Receive(nics.StreamPort); err != nil {
			return err
		}
		if b.load, err = nics.Receive(nics.LoadPort); err != nil {
			return err
		}
		if _, err := unread(nics.UnreadPort); err != nil {
			return err
		}
		if err := discard(nics.TCPPort); err != nil {
			return err
		}
		b.sender, err = nics.Send(nics.FarPod, nics.Load{Flows: 1, Burst: 1, Size: 64, Every: nics.PaceOut, Port: nics.StreamPort})
		return err
	}))
	t.Cleanup(func() { _ = b.sender.Close() })
	rig.Until(t, "the stream comes", func() (bool, string) { return b.stream.Got() > 100, fmt.Sprint(b.stream.Got()) })
	b.far, err = nics.Dial(rig.Patience)
	must(t, err)
	return b
}

// unread is a socket whose datagrams find no room.
func unread(port uint16) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096); err != nil {
		return 0, err
	}
	return fd, unix.Bind(fd, &unix.SockaddrInet4{Port: int(port)})
}

// discard takes connections, and what comes by them.
func discard(port int) error {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{Port: port})
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c) }()
		}
	}()
	return nil
}

// cut ends a phase.
func (b *bed) cut(t *testing.T, load []nics.Load) (p nics.Phase) {
	t.Helper()
	var err error
	p.Out, err = b.far.Ask(nics.Ask{Load: load})
	must(t, err)
	p.In, p.Stall = b.stream.Cut(), b.sender.Stall()
	return p
}

// lasts waits so long, and until the stream comes again.
func (b *bed) lasts(t *testing.T, d time.Duration) {
	t.Helper()
	time.Sleep(d)
	from := b.stream.Got()
	rig.Until(t, "the stream comes", func() (bool, string) { return b.stream.Got() > from+50, "" })
}

func scope() residue.Scope {
	return residue.Scope{Namespaces: []string{"/proc/1/ns/net", "/run/netns/pod"}, Machine: true}
}

// try has a mechanism come, act and go.
func (b *bed) try(t *testing.T, m mechanism) nics.Row {
	row := nics.Row{NIC: *nic, Driver: b.driver(), Kernel: release(), Mechanism: m.name}
	before := residue.Take(t, scope())
	b.cut(t, m.load)
	b.load.Cut()
	b.lasts(t, settled)
	row.Before = b.cut(t, nil)
	carrier, err := b.carrier()
	must(t, err)

	d := rig.Launch(t, rig.Spec{NS: b.root, Config: m.config})
	row.Exit = -1
	b.await(t, d, m, &row)
	if row.Acts && m.key == "aggregate" {
		b.joins(t)
	}
	b.lasts(t, settled)
	row.Attach = b.cut(t, nil)
	if row.Exit < 0 {
		st, err := d.Peek()
		must(t, err)
		row.Expired = st.Counters.MergeExpired
		d.Signal(unix.SIGTERM)
		if code := d.Exited().ExitCode(); code != 0 {
			row.Exit, row.Said = code, last(d.Log())
		}
	}
	d.GoneBoth()
	b.lasts(t, settled)
	row.Detach = b.cut(t, []nics.Load{})
	row.Load = b.load.Cut()
	now, err := b.carrier()
	must(t, err)
	row.Carrier = now - carrier
	row.Left, err = residue.Settled(before, scope())
	must(t, err)
	if testing.Verbose() {
		t.Logf("the daemon said:\n%s", d.Log())
	}
	return row
}

// await waits until the mechanism acts, is known not to, or the daemon has ended.
func (b *bed) await(t *testing.T, d *rig.Daemon, m mechanism, row *nics.Row) {
	t.Helper()
	rig.Until(t, "the daemon runs", func() (bool, string) {
		_, err := d.Peek()
		return err == nil || !d.Runs(), d.Log()
	})
	begun := time.Now()
	for limit := idle; time.Since(begun) < limit; time.Sleep(200 * time.Millisecond) {
		if !d.Runs() {
			row.Exit, row.Said = d.Exited().ExitCode(), last(d.Log())
			return
		}
		st, err := d.Peek()
		if err != nil {
			continue // it is about to end
		}
		for _, x := range st.Mechanisms {
			if strings.ReplaceAll(x.Name, "-", "") == m.key {
				row.State, row.Reason = string(x.State), x.Reason
			}
		}
		if m.acts == nil {
			continue
		}
		if row.Acts = m.acts(st.Counters); row.Acts {
			return
		}
		if limit = idle; row.State == string(control.Active) {
			limit = actsIn
		}
	}
}

// joins asserts that the NICs' GRO joins datagrams, which reads the flag of what receives.
func (b *bed) joins(t *testing.T) {
	for _, p := range b.ports {
		f, err := ethtool.Features(p)
		must(t, err)
		if !f["rx-udp-gro-forwarding"].Active {
			t.Errorf("rx-udp-gro-forwarding of %s is off", p)
		}
	}
}

// last is the last line of a log.
func last(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	return lines[len(lines)-1]
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// judge says what must be so of every NIC and mechanism.
func (b *bed) judge(t *testing.T, m mechanism, row nics.Row) {
	for _, left := range row.Left {
		t.Errorf("residue: %s", left)
	}
	// What had waited for too long goes on, behind others.
	if late := row.Late(); late > 0 && row.Expired == 0 {
		t.Errorf("%d datagrams came late", late)
	}
	if row.Exit > 0 && !(m.refuse && row.Exit == 3) {
		t.Errorf("the daemon ended, exit code %d: %s", row.Exit, row.Said)
	}
	if m.name == "default" && row.Carrier > 0 {
		t.Errorf("the default configuration restarted the link: the carrier changed %d times", row.Carrier)
	}
	if m.acts != nil && !row.Acts && row.Exit < 0 && row.State == string(control.Active) {
		t.Errorf("%s is active, as it says, and counters do not show it: %s", m.key, row.Reason)
	}
}
