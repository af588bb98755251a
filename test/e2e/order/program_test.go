// SPDX-License-Identifier: Apache-2.0

package order

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/lab/traffic"
)

// program is the real thing: bin/overlane as a user runs it.
type program struct {
	proc   *traffic.Process
	setup  setup
	config string
	socket string
}

func startProgram(t *testing.T, s setup) product {
	t.Helper()
	path, err := built()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("needs the go command to build overlane, or -e2e.binary")
	}
	if err != nil {
		t.Fatal(err)
	}
	rx := s.bed.Receiver()
	cookie, err := rx.NS.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{setup: s, config: s.dir + ".yaml"}
	if p.socket, err = control.SocketPath(s.dir, cookie); err != nil {
		t.Fatal(err)
	}
	if err := p.configure(true); err != nil {
		t.Fatal(err)
	}
	if p.proc, err = traffic.StartProcess(rx.NS, nil, path, "run", "--config", p.config, "--state-dir", s.dir); err != nil {
		t.Fatal(err)
	}
	if err := p.running(); err != nil {
		t.Fatal(errors.Join(err, p.proc.Stop(patience)))
	}
	return p
}

func (p *program) running() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		_, err := p.Status(ctx)
		if !errors.Is(err, control.ErrNoDaemon) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-p.proc.Done():
			_, werr := p.proc.Wait(ctx)
			return errors.Join(err, werr)
		case <-time.After(20 * time.Millisecond): // nothing tells of the socket
		}
	}
}

func (p *program) configure(on bool) error {
	tier := config.TierTC
	if p.setup.tier == governor.XDP {
		tier = config.TierXDP
	}
	mode := config.ModeOff
	if on {
		mode = config.ModeForced
	}
	text := fmt.Sprintf("underlays: [%s]\ncores: %s\nmetrics: off\npipeline: %s\ntier: %s\n",
		p.setup.bed.Receiver().Wire, p.setup.cores, mode, tier)
	return os.WriteFile(p.config, []byte(text), 0o600)
}

func (p *program) call(fn func(*control.Client) error) error {
	c, err := control.Dial(p.socket)
	if err != nil {
		return err
	}
	return errors.Join(fn(c), c.Close())
}

func (p *program) Status(ctx context.Context) (st control.Status, err error) {
	err = p.call(func(c *control.Client) error {
		st, err = c.Status(ctx)
		return err
	})
	return st, err
}

func (p *program) SetCores(ctx context.Context, cores config.CPUList) error {
	return p.call(func(c *control.Client) error { return c.SetCores(ctx, cores) })
}

func (p *program) Resteer(ctx context.Context, on bool) error {
	return p.call(func(c *control.Client) error { return c.Resteer(ctx, on) })
}

func (p *program) Enable(_ context.Context, on bool) error {
	if err := p.configure(on); err != nil {
		return err
	}
	return syscall.Kill(p.proc.PID(), syscall.SIGHUP)
}

func (p *program) Stop() error { return p.proc.Stop(patience) }

// built returns the program of -e2e.binary, or builds one, once.
var built = sync.OnceValues(func() (string, error) {
	if *binary != "" {
		return *binary, nil
	}
	if _, err := exec.LookPath("go"); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "overlane-order-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	path := filepath.Join(dir, "overlane")
	cmd := exec.Command("go", "build", "-o", path, "github.com/overlane/overlane/cmd/overlane")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build overlane: %w\n%s", err, out)
	}
	return path, nil
})

var builtIn string

func removeBuilt() {
	if builtIn != "" {
		os.RemoveAll(builtIn)
	}
}
