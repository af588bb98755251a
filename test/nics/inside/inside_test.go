// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
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
	load   nics.Load
	acts   func(was, is control.Counters) bool
	refuse bool // without the mechanism the daemon does not start
}

const alone = "metrics: off\n"

var (
	rows = nics.Load{Flows: 2, Burst: 16, Size: 200, Every: 40 * time.Millisecond, Port: nics.LoadPort}
	// What makes a core short of time, and cannot be mended by joining datagrams.
	ragged = nics.Load{Flows: 2, Burst: 100, Size: 600, Every: 20 * time.Millisecond, Port: nics.UnreadPort, Ragged: true}
	crowds = nics.Load{Flows: 2, Burst: 100, Size: 100, Every: 20 * time.Millisecond, Port: nics.UnreadPort}
)

var mechanisms = []mechanism{
	{name: "default", config: alone + "aggregate: auto\n", load: ragged},
	{name: "pipeline", key: "pipeline", load: rows,
		config: alone + "pipeline: forced\ntier: tc\nmicroflows: {mode: off}\npriority: {mode: off}\naggregate: off\n",
		acts:   func(was, is control.Counters) bool { return is.SteeredPackets > was.SteeredPackets+200 }},
	{name: "tier xdp", key: "pipeline", load: rows, refuse: true,
		config: alone + "pipeline: forced\ntier: xdp\nmicroflows: {mode: off}\npriority: {mode: off}\naggregate: off\n",
		acts:   func(was, is control.Counters) bool { return is.SteeredPackets > was.SteeredPackets+200 }},
	{name: "aggregate", key: "aggregate", load: rows,
		config: alone + "pipeline: off\nmicroflows: {mode: off}\npriority: {mode: off}\naggregate: forced\n",
		acts:   func(was, is control.Counters) bool { return is.AggregatedPackets > was.AggregatedPackets+200 }},
	{name: "express", key: "express", load: crowds,
		config: alone + "pipeline: off\nmicroflows: {mode: off}\npriority: {mode: off}\naggregate: off\nexpress: auto\n",
		acts:   func(was, is control.Counters) bool { return is.ExpressPackets > was.ExpressPackets+200 }},
	{name: "priority", key: "priority", load: rows,
		config: alone + fmt.Sprintf("pipeline: off\nmicroflows: {mode: off}\naggregate: off\npriority: {rules: [{name: stream, proto: udp, port: %d}]}\n", nics.StreamPort),
		acts: func(was, is control.Counters) bool {
			return is.LatencyPackets > was.LatencyPackets+200 && is.BulkPackets > was.BulkPackets+200
		}},
	{name: "microflows", key: "microflows", load: rows,
		config: alone + "pipeline: off\npriority: {mode: off}\naggregate: off\nmicroflows: {mode: forced, batch: 8, elephant: 300kbit, udp-order: none}\n",
		acts:   func(was, is control.Counters) bool { return is.SplitPackets > was.SplitPackets+200 }},
}

const (
	settled = 2 * time.Second  // of each phase: what a link needs to come back
	actsIn  = 40 * time.Second // at most
	watched = 25 * time.Second // the default configuration
)

// bed is the machine with its streams.
type bed struct {
	*node
	far    *nics.Far
	stream *nics.Receiver
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
	var sender *nics.Sender
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
		sender, err = nics.Send(nics.FarPod, nics.Load{Flows: 1, Burst: 1, Size: 64, Every: nics.StreamPace, Port: nics.StreamPort})
		return err
	}))
	t.Cleanup(func() { _ = sender.Close() })
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

// cut ends a phase.
func (b *bed) cut(t *testing.T, load *nics.Load) (p nics.Phase) {
	t.Helper()
	var err error
	p.Out, err = b.far.Ask(nics.Ask{Load: load})
	must(t, err)
	p.In = b.stream.Cut()
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
	b.cut(t, &m.load)
	b.load.Cut()
	b.lasts(t, settled)
	row.Before = b.cut(t, nil)
	carrier, err := b.carrier()
	must(t, err)

	d := rig.Launch(t, rig.Spec{NS: b.root, Config: m.config})
	row.Exit = -1
	b.await(t, d, m, &row)
	b.lasts(t, settled)
	row.Attach = b.cut(t, nil)
	if row.Exit < 0 {
		d.Signal(unix.SIGTERM)
		if code := d.Exited().ExitCode(); code != 0 {
			row.Exit, row.Said = code, last(d.Log())
		}
	}
	d.GoneBoth()
	b.lasts(t, settled)
	row.Detach = b.cut(t, &nics.Load{})
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

// await waits until the mechanism acts, or the daemon has ended.
func (b *bed) await(t *testing.T, d *rig.Daemon, m mechanism, row *nics.Row) {
	t.Helper()
	limit := actsIn
	if m.acts == nil {
		limit = watched
	}
	var was *control.Counters
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if !d.Runs() {
			row.Exit, row.Said = d.Exited().ExitCode(), last(d.Log())
			return
		}
		st, err := d.Peek()
		if err != nil {
			continue // it has just begun
		}
		row.State, row.Reason = "", ""
		for _, x := range st.Mechanisms {
			if x.Name == m.key || strings.ReplaceAll(x.Name, "-", "") == m.key {
				row.State, row.Reason = string(x.State), x.Reason
			}
		}
		if was == nil {
			was = &st.Counters
		}
		if m.acts != nil && m.acts(*was, st.Counters) {
			row.Acts = true
			return
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
	if late := row.Attach.In.Late + row.Attach.Out.Late + row.Detach.In.Late + row.Detach.Out.Late + row.Load.Late; late > 0 && m.name != "microflows" {
		t.Errorf("%d datagrams came late", late)
	}
	if row.Exit > 0 && !(m.refuse && row.Exit == 3) {
		t.Errorf("the daemon ended, exit code %d: %s", row.Exit, row.Said)
	}
	if m.name == "default" && row.Carrier > 0 {
		t.Errorf("the default configuration restarted the link: the carrier changed %d times", row.Carrier)
	}
}
