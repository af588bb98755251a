// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

const (
	network = "traffic" // the overlay network's name
	image   = "numbered"
)

// swarm is two engines in the hosts of a lab, whose containers an overlay network joins.
type swarm struct {
	bed       *bed.Bed
	dir       string
	sender    *engine
	receiver  *engine
	networkID string
	names     int // of containers, so far
}

// engine is a dockerd, with a containerd of its own.
type engine struct {
	host    *bed.Host
	dir     string
	options []string
	api     *http.Client

	cmd    *exec.Cmd
	exited chan struct{}
}

// made are the swarms by the engines' options, the same for all tests. The keeper ends them.
var made = map[string]*swarm{}

// beds counts those that were built, of swarms that no test uses any more, too: they are there until the end.
var beds int

// engines starts two engines, with further options, if there are not any yet.
func engines(t testing.TB, options ...string) *swarm {
	t.Helper()
	rig.NeedRoot(t)
	rig.NeedCores(t, 2)
	speed.Turn(t)
	if err := lacking(); err != nil {
		t.Skip(err)
	}
	key := strings.Join(options, " ")
	if made[key] == nil {
		begin := time.Now()
		s, err := join(build(t), options)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("two engines and their network in %s", time.Since(begin).Round(time.Millisecond))
		made[key] = s
	}
	for _, e := range []*engine{made[key].sender, made[key].receiver} {
		select {
		case <-e.exited: // of a test that failed
			t.Fatalf("an engine has ended: %s\n%s", e.cmd.ProcessState, e.log())
		default:
		}
	}
	return made[key]
}

// build builds the program of the containers.
func build(t testing.TB) (program []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), image)
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "./numbered/main")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err == nil {
		program, err = os.ReadFile(path)
	}
	if err != nil {
		t.Fatalf("build the program of the containers: %v\n%s", err, out)
	}
	return program
}

// join starts the engines, and gives both the image and the network.
func join(program []byte, options []string) (*swarm, error) {
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		return nil, err
	}
	beds++
	b, err := bed.Up(bed.Options{Name: fmt.Sprintf("d%x%d", os.Getpid(), beds), Topology: bed.Bare, StateDir: filepath.Join(dir, "lab")})
	if err != nil {
		return nil, err
	}
	s := &swarm{bed: b, dir: dir}
	s.sender, s.receiver = newEngine(b.Sender(), dir, options), newEngine(b.Receiver(), dir, options)
	both := []*engine{s.sender, s.receiver}
	for _, e := range both {
		if err := e.start(); err != nil {
			return nil, err
		}
	}
	for _, e := range both {
		if err := e.ready(); err != nil {
			return nil, err
		}
		if err := e.importImage(program); err != nil {
			return nil, fmt.Errorf("import the image: %w", err)
		}
	}
	manager := s.sender.host.IP.String()
	err = s.sender.call("POST", "/swarm/init", map[string]string{"ListenAddr": manager, "AdvertiseAddr": manager}, nil)
	if err != nil {
		return nil, err
	}
	var joined struct{ JoinTokens struct{ Worker string } }
	if err := s.sender.call("GET", "/swarm", nil, &joined); err != nil {
		return nil, err
	}
	worker := s.receiver.host.IP.String()
	err = s.receiver.call("POST", "/swarm/join", map[string]any{"ListenAddr": worker, "AdvertiseAddr": worker,
		"RemoteAddrs": []string{manager}, "JoinToken": joined.JoinTokens.Worker}, nil)
	// On a busy machine it takes longer than the engine waits before it answers.
	if err != nil && !strings.Contains(err.Error(), "will continue in the background") {
		return nil, err
	}
	if err := s.receiver.member(); err != nil {
		return nil, err
	}
	var created struct{ ID string }
	err = s.sender.call("POST", "/networks/create", map[string]any{"Name": network, "Driver": "overlay", "Attachable": true}, &created)
	s.networkID = created.ID
	return s, err
}

// exec is its exec-root, where the namespaces of its networks are mounted: as by default below /run, which
// containers can be given, and not in /run/docker.
func (e *engine) exec() string {
	return filepath.Join("/run", filepath.Base(filepath.Dir(e.dir)), filepath.Base(e.dir))
}

// overlay is the namespace of the network's tunnel on an engine, which is there while a container is.
func (s *swarm) overlay(e *engine) string {
	return filepath.Join(e.exec(), "netns", "1-"+s.networkID[:10])
}

func newEngine(host *bed.Host, dir string, options []string) *engine {
	e := &engine{host: host, options: options, dir: filepath.Join(dir, host.Name)}
	e.api = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", e.socket())
		},
	}, Timeout: rig.Patience}
	return e
}

func (e *engine) socket() string { return filepath.Join(e.dir, "sock") }

// start starts it in its host's namespace, as nsenter --net does. (ip netns exec would hide the
// control groups.) Its exec-root is not the default one, on purpose.
func (e *engine) start() error {
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(e.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	e.cmd = exec.Command("dockerd", append(e.options, "--data-root", filepath.Join(e.dir, "data"), "--exec-root", e.exec(),
		"--pidfile", filepath.Join(e.dir, "pid"), "--host", "unix://"+e.socket(),
		"--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", os.Getenv(cgroupOf))...)
	e.cmd.Stdout, e.cmd.Stderr = log, log
	if err := e.host.NS.Do(e.cmd.Start); err != nil {
		return fmt.Errorf("start an engine: %w", err)
	}
	exited := make(chan struct{})
	e.exited = exited
	cmd := e.cmd
	go func() {
		_ = cmd.Wait() // the next request notices its end
		close(exited)
	}()
	return nil
}

// log is the end of what the engine said.
func (e *engine) log() string {
	data, _ := os.ReadFile(filepath.Join(e.dir, "log"))
	return string(data[max(0, len(data)-4000):])
}

// await waits until what is asked is so; until then asked returns why not.
func (e *engine) await(asked func() error) error {
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := asked()
		if err == nil {
			return nil
		}
		select {
		case <-e.exited:
			return fmt.Errorf("an engine ended: %s\n%s", e.cmd.ProcessState, e.log())
		default:
		}
		if time.Since(begin) > rig.Patience {
			return fmt.Errorf("an engine: %w\n%s", err, e.log())
		}
	}
}

// ready waits until it answers.
func (e *engine) ready() error {
	return e.await(func() error { return e.call("GET", "/_ping", nil, nil) })
}

// member waits until it is in its swarm.
func (e *engine) member() error {
	return e.await(func() error {
		var info struct {
			Swarm struct{ LocalNodeState string }
		}
		if err := e.call("GET", "/info", nil, &info); err != nil {
			return err
		}
		if state := info.Swarm.LocalNodeState; state != "active" {
			return fmt.Errorf("not in its swarm: %q", state)
		}
		return nil
	})
}

// stop ends it, and its containers with it.
func (e *engine) stop(t *testing.T) {
	t.Helper()
	if err := e.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-e.exited:
	case <-time.After(rig.Patience):
		t.Fatalf("an engine does not end\n%s", e.log())
	}
	e.api.CloseIdleConnections()
}

// call makes a request of the engine's API.
func (e *engine) call(method, path string, body, into any) error {
	var text io.Reader
	kind := "application/json"
	switch b := body.(type) {
	case nil:
	case []byte:
		text, kind = bytes.NewReader(b), "application/x-tar"
	default:
		data, err := json.Marshal(b)
		if err != nil {
			return err
		}
		text = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, "http://engine"+path, text)
	if err != nil {
		return err
	}
	if text != nil {
		req.Header.Set("Content-Type", kind)
	}
	res, err := e.api.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if res.StatusCode >= 400 {
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, strings.TrimSpace(string(answer)))
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

// importImage makes an image of a single program.
func (e *engine) importImage(program []byte) error {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	err := w.WriteHeader(&tar.Header{Name: image, Mode: 0o755, Size: int64(len(program))})
	if err == nil {
		_, err = w.Write(program)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	return e.call("POST", "/images/create?fromSrc=-&repo="+image, buf.Bytes(), nil)
}

// container is one of the overlay network's.
type container struct {
	*engine
	t     testing.TB
	id    string
	name  string
	pid   int
	ip    netip.Addr
	share string // a folder that is /share inside
	gone  bool
}

// run starts a container that goes with the test. It runs on one core.
func (s *swarm) run(t testing.TB, e *engine, core int, args ...string) *container {
	t.Helper()
	c, err := s.create(e, core, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, e.log())
	}
	c.t = t
	t.Cleanup(c.remove)
	return c
}

var names sync.Mutex

func (s *swarm) create(e *engine, core int, args ...string) (*container, error) {
	names.Lock()
	s.names++
	c := &container{engine: e, name: fmt.Sprintf("%s-%d", args[0], s.names)}
	names.Unlock()
	c.share = filepath.Join(s.dir, c.name)
	if err := os.Mkdir(c.share, 0o700); err != nil {
		return nil, err
	}
	var created struct{ Id string }
	err := e.call("POST", "/containers/create?name="+c.name, map[string]any{
		"Image": image, "Cmd": append([]string{"/" + image, "-counters", "/share/counters"}, args[1:]...),
		"HostConfig": map[string]any{"NetworkMode": network, "CpusetCpus": fmt.Sprint(core), "Binds": []string{c.share + ":/share"}},
	}, &created)
	if err != nil {
		return nil, err
	}
	c.id = created.Id
	if err := e.call("POST", "/containers/"+c.id+"/start", nil, nil); err != nil {
		return nil, err
	}
	var about struct {
		State           struct{ Pid int }
		NetworkSettings struct {
			Networks map[string]struct{ IPAddress string }
		}
	}
	if err := e.call("GET", "/containers/"+c.id+"/json", nil, &about); err != nil {
		return nil, err
	}
	c.pid = about.State.Pid
	c.ip, err = netip.ParseAddr(about.NetworkSettings.Networks[network].IPAddress)
	return c, err
}

// end has its program send no more.
func (c *container) end() {
	c.t.Helper()
	if err := c.call("POST", "/containers/"+c.id+"/kill?signal=TERM", nil, nil); err != nil {
		c.t.Fatal(err)
	}
	rig.Until(c.t, "the sender ends", func() (bool, string) { return c.counters().Ended, c.output() })
}

func (c *container) remove() {
	c.t.Helper()
	if c.gone {
		return
	}
	c.gone = true
	if c.t.Failed() {
		c.t.Logf("%s said: %s", c.name, c.output())
	}
	if err := c.call("DELETE", "/containers/"+c.id+"?force=1", nil, nil); err != nil {
		c.t.Error(err)
	}
}

// output is what the program said.
func (c *container) output() string { return c.logsOf(c.id) }

// logsOf is what a container said.
func (e *engine) logsOf(id string) string {
	res, err := e.api.Get("http://engine/containers/" + id + "/logs?stdout=1&stderr=1")
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	data, _ := io.ReadAll(res.Body)
	return plain(data)
}

func (e *engine) must(t *testing.T, method, path string) {
	t.Helper()
	if err := e.call(method, path, nil, nil); err != nil {
		t.Fatal(err)
	}
}

// wait returns what a container ended with.
func (e *engine) wait(t *testing.T, id string) int {
	t.Helper()
	var end struct{ StatusCode int }
	if err := e.call("POST", "/containers/"+id+"/wait", nil, &end); err != nil {
		t.Fatal(err)
	}
	return end.StatusCode
}

// execIn is docker exec.
func (e *engine) execIn(t *testing.T, id string, command ...string) (out string, code int) {
	t.Helper()
	var created struct{ Id string }
	if err := e.call("POST", "/containers/"+id+"/exec", map[string]any{"Cmd": command, "AttachStdout": true}, &created); err != nil {
		t.Fatalf("%v\n%s", err, e.logsOf(id))
	}
	res, err := e.api.Post("http://engine/exec/"+created.Id+"/start", "application/json", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v\n%s", res.Status, err, data)
	}
	var end struct{ ExitCode int }
	if err := e.call("GET", "/exec/"+created.Id+"/json", nil, &end); err != nil {
		t.Fatal(err)
	}
	return plain(data), end.ExitCode
}

// plain is a stream of the API without the eight bytes before each piece, of which the last four are its length.
func plain(data []byte) string {
	var out strings.Builder
	for len(data) >= 8 {
		n := min(int(binary.BigEndian.Uint32(data[4:])), len(data)-8)
		out.Write(data[8 : 8+n])
		data = data[8+n:]
	}
	return out.String()
}
