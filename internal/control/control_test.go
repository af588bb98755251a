// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/rules"
)

// dialVar and listenVar make the test binary one end of a connection.
const (
	dialVar   = "OVERLANE_TEST_DIAL"
	listenVar = "OVERLANE_TEST_LISTEN"
)

// TestMain lets a test start this binary again as another user or as the
// process at the other end.
func TestMain(m *testing.M) {
	if path := os.Getenv(listenVar); path != "" {
		l, err := net.Listen("unix", path)
		if err != nil {
			os.Exit(1)
		}
		os.Stdout.WriteString("listening\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		l.Close()
		os.Exit(0)
	}
	if path := os.Getenv(dialVar); path != "" {
		c, err := Dial(path)
		if err == nil {
			_, err = c.Status(context.Background())
		}
		if err != nil {
			os.Stdout.WriteString(err.Error())
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

type fake struct {
	mu      sync.Mutex
	status  Status
	resteer bool
	rules   []rules.Rule
	off     func() (OffReport, error)
}

func (f *fake) Status() Status { return f.status }

func (f *fake) Off(context.Context) (OffReport, error) { return f.off() }

func (f *fake) AddRule(_ context.Context, r rules.Rule) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, r)
	return nil
}

func (f *fake) DelRule(_ context.Context, name string) error {
	return fmt.Errorf("there is no rule %q", name)
}

func (f *fake) Resteer(_ context.Context, on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resteer = on
	return nil
}

// start serves until the test ends or the returned function is called, which
// returns when Serve has.
func start(t *testing.T, h Handler) (path string, stop func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "5", "s")
	s, err := Listen(path, h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return path, stop
}

func dial(t *testing.T, path string) *Client {
	t.Helper()
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestStatusComesBackAsItIs(t *testing.T) {
	want := Status{
		Schema: Schema, State: Running, PID: 7, Since: time.Unix(1e9, 0).UTC(), Version: "v", Kernel: "k", Netns: 1,
		Cores:       config.CPUList{0, 1},
		Tiers:       []TierStatus{{Name: "xdp", Reason: "r", Remedy: "m"}},
		Mechanisms:  []Mechanism{{Name: "pipeline", State: Active, Reason: "r", Since: time.Unix(1e9, 0).UTC()}},
		Devices:     []Device{{Name: "eth0", Role: Underlay, State: Active}},
		Lanes:       []Lane{{Stage: "tunnel", Core: 1, Packets: 1 << 60}},
		StageCosts:  []StageCost{{Stage: "nic", NsPerPacket: Measured(1.5)}},
		Rules:       []Rule{},
		SparseFlows: []SparseFlow{}, Trials: []Trial{},
		Services: []foreign.Service{}, Namespaces: []node.Place{{Netns: 7, Container: "3f2a9c1b7d44"}},
		Express:  []ExpressPath{{NIC: "eth0", Tunnel: "vx0", Pod: "ve1", Netns: 7, Name: "3f2a9c1b7d44", Reason: "nftables"}},
		Counters: Counters{SteeredPackets: 3, ExpressUnfit: map[string]uint64{"too-long": 2}, Unparsed: map[string]uint64{"short": 1}},
	}
	path, _ := start(t, &fake{status: want})
	c := dial(t, path)
	for range 2 { // one connection carries several requests
		got, err := c.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
}

// The names in the JSON form are an interface.
func TestStatusNamesInJSON(t *testing.T) {
	data, err := json.Marshal(Status{
		Tiers: []TierStatus{{}}, Mechanisms: []Mechanism{{}}, Devices: []Device{{}}, Lanes: []Lane{{}}, StageCosts: []StageCost{{}},
		Rules: []Rule{{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"schema":0,"state":"","pid":0,"since":"0001-01-01T00:00:00Z","version":"","kernel":"","netns":0,"cores":"",` +
		`"tiers":[{"name":"","reached":false}],` +
		`"mechanisms":[{"name":"","state":"","reason":"","since":"0001-01-01T00:00:00Z"}],` +
		`"devices":[{"name":"","netns":0,"role":"","state":""}],"namespaces":null,` +
		`"lanes":[{"stage":"","core":0,"packets":0,"queue":0,"drops":0}],` +
		`"stage_costs":[{"stage":"","ns_per_packet":null}],` +
		`"rules":[{"name":"","class":"","added":false,"packets":0}],"sparse_flows":null,"trials":null,"express":null,` +
		`"counters":{"overlay_packets":0,"steered_packets":0,"split_packets":0,"microflows":0,"splits":0,` +
		`"merge_passed":0,"merge_late":0,"merge_held":0,"merge_gaps":0,"merge_expired":0,"merge_unwatched":0,"merge_refused":0,"merge_dropped":0,"merge_waiting":0,"merge_no_room":0,"aggregated_packets":0,"super_packets":0,"counted_packets":0,"express_packets":0,"express_drops":0,"express_left":0,"express_unfit":null,"lane_changes":0,"lane_changes_held":0,"lane_drops":0,"lane_refused":0,` +
		`"latency_packets":0,"latency_held":0,"latency_excess":0,"short_cut_packets":0,"bridged_packets":0,"bulk_packets":0,"bulk_lane_packets":0,"refused_packets":0,"bulk_short_cut_packets":0,"bulk_bridged_packets":0,"unparsed":null,"scans":0},"neighbours":null,"metrics":{"address":""}}`
	if d := cmp.Diff(want, string(data)); d != "" {
		t.Error(d)
	}
}

func TestRequestsReachTheHandlerOrChangeNothing(t *testing.T) {
	f := &fake{}
	path, _ := start(t, f)
	c := dial(t, path)
	var remote *RemoteError
	if err := c.Resteer(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	web := rules.Rule{Name: "web", Class: rules.Bulk, Proto: 6, Port: 80, Prefix: netip.MustParsePrefix("fd00::/8"), Network: rules.Overlay}
	if err := c.AddRule(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	if err := c.AddRule(t.Context(), rules.Rule{Name: "everything"}); !errors.As(err, &remote) {
		t.Errorf("a rule that fits every flow: got %v", err)
	}
	if err := c.DelRule(t.Context(), "x"); !errors.As(err, &remote) || remote.Message != `there is no rule "x"` {
		t.Errorf("got %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := cmp.Diff([]rules.Rule{web}, f.rules, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Error(d)
	}
	if !f.resteer {
		t.Error("flows keep their lanes")
	}
}

func TestBadRequestsAreRefusedWithAReason(t *testing.T) {
	f := &fake{}
	path, _ := start(t, f)
	for name, tc := range map[string]struct{ in, want string }{
		"no JSON":       {"hello\n", "bad request: "},
		"unknown field": {`{"verb":"status","x":1}` + "\n", `bad request: json: unknown field "x"`},
		"two values":    {`{"verb":"status"}{}` + "\n", "bad request: more than one value"},
		"unknown verb":  {`{"verb":"fly"}` + "\n", `unknown request "fly"`},
		"no args":       {`{"verb":"resteer"}` + "\n", "resteer: "},
		"too long":      {strings.Repeat("x", maxRequest+1) + "\n", "request too long"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, tc.in); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(conn).ReadBytes('\n')
			if err != nil {
				t.Fatal(err)
			}
			var r response
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(r.Error, tc.want) || r.Result != nil {
				t.Errorf("got %s, want error %q", line, tc.want)
			}
		})
	}
	if f.rules != nil || f.resteer {
		t.Error("a bad request changed something")
	}
}

func TestOffIsAnsweredAlthoughTheDaemonStopsBecauseOfIt(t *testing.T) {
	f := &fake{}
	want := OffReport{Schema: Schema, PID: 3, Report: apply.Report{Results: []apply.Result{{
		Setting: plan.Setting{Kind: plan.SysfsAttr, Attr: "queues/rx-0/rps_cpus"}, Outcome: apply.Restored, From: "2", To: "0",
	}}}}
	path, stop := start(t, f)
	stopped := make(chan struct{})
	f.off = func() (OffReport, error) {
		go func() { stop(); close(stopped) }()
		return want, nil
	}
	bystander := dial(t, path)
	if _, err := bystander.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := dial(t, path).Off(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	<-stopped // also with the connection of a bystander open
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
	if _, err := bystander.Status(t.Context()); err == nil {
		t.Error("a stopped daemon answered")
	}
}

// Clients that ask nothing, or do not read their answers, keep no other from being answered, and no daemon from ending.
func TestIdleClientsKeepNoOtherOut(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	f := &fake{status: Status{Schema: Schema, Version: strings.Repeat("x", 1<<20)}, off: func() (OffReport, error) {
		asked <- struct{}{}
		<-answer
		return OffReport{Schema: Schema, PID: 7}, nil
	}}
	path, stop := start(t, f)
	off := func() chan error {
		done := make(chan error)
		c := dial(t, path)
		go func() {
			_, err := c.Off(t.Context())
			done <- err
		}()
		<-asked
		return done
	}
	// The oldest is being answered.
	first := off()
	idle := dial(t, path)
	deaf := make([]*Client, maxConns-2)
	for i := range deaf {
		deaf[i] = dial(t, path)
		if _, err := deaf[i].conn.Write([]byte(`{"verb":"status"}` + "\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := deaf[i].r.Peek(1); err != nil { // the answer is on its way
			t.Fatal(err)
		}
	}
	second := off()
	if _, err := idle.conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection that waited longest: %v", err)
	}
	third := off()
	close(answer)
	for i, done := range []chan error{first, second, third} {
		if err := <-done; err != nil {
			t.Errorf("off %d: %v", i+1, err)
		}
	}
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(idleTimeout / 2):
		t.Error("clients that do not read keep the daemon from ending")
	}
}

func TestNoDaemonIsATypedError(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, path := range []string{filepath.Join(dir, "none"), filepath.Join(dir, "no", "folder"), dead, filepath.Join(dead, "x")} {
		if _, err := Dial(path); !errors.Is(err, ErrNoDaemon) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestListenReplacesADeadSocketAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	for range 2 {
		s, err := Listen(path, &fake{})
		if err != nil {
			t.Fatal(err)
		}
		s.l.SetUnlinkOnClose(false) // as SIGKILL does
		s.l.Close()
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, &fake{}); err == nil || !strings.Contains(err.Error(), "is in the way") {
		t.Error(err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "mine" {
		t.Error("a foreign file was touched")
	}
}

func TestSocketIsTheOwnersAlone(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path, _ := start(t, &fake{})
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", fi.Mode())
	}
	if fi, err = os.Stat(filepath.Dir(path)); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("folder: %v, %v", fi.Mode(), err)
	}
}

// The modes of file and folder are one guard, the peer's credentials another.
func TestOthersAreRefusedEvenWhereTheModeLetsThemIn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	path, _ := start(t, &fake{})
	bin := filepath.Join(t.TempDir(), "client")
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bin, data, 0o755); err != nil {
		t.Fatal(err)
	}
	unprivileged := func() string {
		t.Helper()
		cmd := exec.Command(bin)
		cmd.Dir = "/"
		cmd.Env = []string{dialVar + "=" + path}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	for dir := filepath.Dir(bin); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for dir := filepath.Dir(filepath.Dir(path)); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := unprivileged(); got != ErrPermission.Error() {
		t.Errorf("folder closed: %q", got)
	}
	for _, p := range []string{filepath.Dir(path), path} {
		if err := os.Chmod(p, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if got := unprivileged(); got != ErrPermission.Error() {
		t.Errorf("everything open: %q", got)
	}
}

func TestAskingASilentDaemonEndsWithTheContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path) // accepts in the kernel, never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := dial(t, path).Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := dial(t, path).Status(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestWaitGoneSeesTheEndOfTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), listenVar+"="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	c := dial(t, path)
	if c.PID() != cmd.Process.Pid {
		t.Errorf("pid %d, want %d", c.PID(), cmd.Process.Pid)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.WaitGone(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a living daemon: %v", err)
	}
	in.Close()
	if err := c.WaitGone(t.Context()); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
}

func TestSocketPath(t *testing.T) {
	if p, err := SocketPath("/run/overlane", 7); err != nil || p != "/run/overlane/7/control.sock" {
		t.Error(p, err)
	}
	if _, err := SocketPath("/"+strings.Repeat("x", 100), 7); err == nil || !strings.Contains(err.Error(), "shorter --state-dir") {
		t.Error(err)
	}
}

func TestEmptyListsAreNotNull(t *testing.T) {
	path, _ := start(t, &fake{})
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, `{"verb":"status"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(line, "null") {
		t.Error(line)
	}
}
