// SPDX-License-Identifier: Apache-2.0

package order

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/lab/bed"
)

// patience is how long anything may take that must happen.
const patience = 20 * time.Second

// product is the daemon under test, running in the receiving host.
type product interface {
	Status(context.Context) (control.Status, error)
	SetCores(context.Context, config.CPUList) error
	Resteer(context.Context, bool) error
	// Enable switches the pipeline on, by force, or off.
	Enable(context.Context, bool) error
	// Stop ends the daemon, which leaves the node as it was.
	Stop() error
}

// setup is how a product is to be started.
type setup struct {
	bed   *bed.Bed
	tier  governor.Tier
	cores config.CPUList
	dir   string // for its state
}

// starter starts a product with the pipeline forced on.
type starter func(*testing.T, setup) product

// inProcess is the daemon as part of this process: no program has to be built,
// and the test binary can be taken to another kernel.
type inProcess struct {
	d      *daemon.Daemon
	opts   daemon.Options
	cancel context.CancelFunc
	done   chan error
}

func startInProcess(t *testing.T, s setup) product {
	t.Helper()
	p := &inProcess{done: make(chan error, 1), opts: daemon.Options{
		StateDir:     s.dir,
		Underlays:    []string{s.bed.Receiver().Wire},
		Cores:        s.cores,
		Mode:         governor.Forced,
		Tier:         s.tier,
		Limits:       governor.DefaultLimits(),
		GuardianVerb: []string{guardianVerb},
		Log:          slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	started := make(chan error, 1)
	go func() {
		p.done <- s.bed.Receiver().NS.Do(func() error {
			var err error
			p.d, err = daemon.Start(ctx, p.opts)
			started <- err
			if err != nil {
				return err
			}
			return p.d.Run(ctx)
		})
	}()
	if err := <-started; err != nil {
		cancel()
		t.Fatal(err)
	}
	return p
}

func (p *inProcess) Status(context.Context) (control.Status, error) { return p.d.Status(), nil }

func (p *inProcess) SetCores(ctx context.Context, cores config.CPUList) error {
	return p.d.SetCores(ctx, cores)
}

func (p *inProcess) Resteer(ctx context.Context, on bool) error { return p.d.Resteer(ctx, on) }

func (p *inProcess) Enable(ctx context.Context, on bool) error {
	opts := p.opts
	opts.Mode = governor.Off
	if on {
		opts.Mode = governor.Forced
	}
	return p.d.Reconfigure(ctx, opts)
}

func (p *inProcess) Stop() error {
	p.cancel()
	return <-p.done
}

// uses tells whether a status shows the pipeline at work with lanes on the core.
func uses(st control.Status, core int) bool {
	for _, l := range st.Lanes {
		if l.Core == core {
			return true
		}
	}
	return false
}

// acts tells whether a status shows the pipeline at work.
func acts(st control.Status) bool {
	return len(st.Lanes) > 0 && len(st.Mechanisms) > 0 && st.Mechanisms[0].State == control.Active
}

// await asks the product until its status is as it should be.
func await(ctx context.Context, p product, what string, is func(control.Status) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		st, err := p.Status(ctx)
		if err != nil {
			return err
		}
		if is(st) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s: lanes %v, mechanisms %v", what, patience, st.Lanes, st.Mechanisms)
		case <-time.After(10 * time.Millisecond): // nothing tells of a change
		}
	}
}

// stateDir is a folder with a short name: the path of a socket has little room.
func stateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ol")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "state")
}
