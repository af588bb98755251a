// SPDX-License-Identifier: Apache-2.0

package order

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
)

// product is the daemon under test, in the receiving host of a bed, as it is
// told what to do: by its configuration and its control socket.
type product struct {
	*rig.Daemon
	bed   *bed.Bed
	by    means
	cores config.CPUList
}

// means are by what packets are brought to other cores.
type means string

const (
	tc        means = "tc"
	xdp       means = "xdp"
	expressed means = "express"
	piped     means = "express-piped" // beside the pipeline: flows come to it from lanes, and go back
	unordered means = "unordered2"    // loses order
)

// mechanism is one of them: its name in a status, and the configuration of it in a mode (%[3]s).
type mechanism struct {
	name, config string
}

// What is not under test is off, or it may have a trial of its own while what is under test is switched off.
// Priority may reorder packets once when a NIC comes to be polled by a thread (KNOWN_ISSUES.md).
const (
	unsplit   = "microflows: {mode: off}\n"
	noExpress = "express: off\n"
)

var mechanisms = map[means]mechanism{
	tc:        {"pipeline", unsplit + noExpress + "pipeline: %s\ntier: tc\n"},
	xdp:       {"pipeline", unsplit + noExpress + "pipeline: %s\ntier: xdp\n"},
	expressed: {"express", "pipeline: off\n" + unsplit + "express: %s\n"},
	piped:     {"express", "pipeline: %[3]s\ntier: tc\n" + unsplit + "express: %[3]s\n"},
	// Cut on the NIC, or behind its stage, into so many branches.
	"cut2":    {"microflows", noExpress + "pipeline: off\nmicroflows: {mode: %s, elephant: 1Mbit, cores: 2}\n"},
	"cut4":    {"microflows", noExpress + "pipeline: off\nmicroflows: {mode: %s, elephant: 1Mbit, cores: 4}\n"},
	"behind2": {"microflows", noExpress + "pipeline: off\ntier: tc\nmicroflows: {mode: %s, elephant: 1Mbit, cores: 2}\n"},
	unordered: {"microflows", noExpress + "pipeline: off\nmicroflows: {mode: %s, elephant: 1Mbit, cores: 2, udp-order: none}\n"},
}

// of is the mechanism in a status.
func (m mechanism) of(st control.Status) control.Mechanism { return st.Mechanism(m.name) }

// acts tells whether it is at work.
func (m mechanism) acts(st control.Status) bool {
	return m.of(st).State == control.Active && (len(st.Lanes) > 0 || m == mechanisms[expressed]) && (m.name != "express" || opened(st))
}

// opened tells whether an express path to a pod is open.
func opened(st control.Status) bool {
	return slices.ContainsFunc(st.Express, func(w control.ExpressPath) bool { return w.Open })
}

// off tells whether it has left the node, and flows are drained.
func (m mechanism) off(st control.Status) bool {
	return m.of(st).State == control.Off && len(st.Lanes) == 0 && !opened(st)
}

// program is the product, which can be asked to have each poll wish for another lane.
func program(tb testing.TB) string { return rig.Program(tb, "resteer") }

// start starts the daemon with a mechanism forced on, and waits until it acts.
func start(t *testing.T, b *bed.Bed, by means) (*product, error) {
	t.Helper()
	p := &product{bed: b, by: by, cores: steered(b)}
	if *machine {
		t.Cleanup(func() { t.Log(p.Log()) }) // it cannot be asked for later
	}
	p.Daemon = rig.Start(t, rig.Spec{NS: b.Receiver().NS, Program: program(t), Config: p.config(config.ModeForced, p.cores)})
	return p, p.await("it acts", mechanisms[by].acts)
}

func (p *product) config(mode config.Mode, cores config.CPUList) string {
	return fmt.Sprintf("underlays: [%s]\ncores: %s\nmetrics: off\naggregate: off\npriority: {mode: off}\n"+mechanisms[p.by].config,
		p.bed.Receiver().Wire, cores, mode)
}

// enable switches the mechanism on, by force, or off, as an administrator would.
func (p *product) enable(on bool) error {
	mode := config.ModeOff
	if on {
		mode = config.ModeForced
	}
	return p.configure(p.config(mode, p.cores))
}

// configure has the daemon read another configuration.
func (p *product) configure(text string) error {
	// Renamed into place: a reader must not find half of it.
	file := filepath.Join(filepath.Dir(p.State), "config.yaml")
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	p.Signal(unix.SIGHUP)
	return nil
}

// call asks the daemon over its socket.
func (p *product) call(ask func(context.Context, *control.Client) error) error {
	c, err := control.Dial(filepath.Join(p.Folder(), "control.sock"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), rig.Patience)
	defer cancel()
	return errors.Join(ask(ctx, c), c.Close())
}

func (p *product) status() (st control.Status, err error) {
	err = p.call(func(ctx context.Context, c *control.Client) (err error) {
		st, err = c.Status(ctx)
		return err
	})
	return st, err
}

func (p *product) setCores(cores config.CPUList) error {
	return p.configure(p.config(config.ModeForced, cores))
}

func (p *product) resteer(on bool) error {
	return p.call(func(ctx context.Context, c *control.Client) error { return c.Resteer(ctx, on) })
}

// await asks for the status until it is as it should be.
func (p *product) await(what string, is func(control.Status) bool) error {
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) { // nothing tells of a change
		st, err := p.status()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if is(st) {
			return nil
		}
		if time.Since(begun) > rig.Patience {
			return fmt.Errorf("%s: not within %s: lanes %v, mechanisms %v", what, rig.Patience, st.Lanes, st.Mechanisms)
		}
	}
}

// uses tells whether the pipeline has a lane on the core.
func uses(st control.Status, core int) bool {
	for _, l := range st.Lanes {
		if l.Core == core {
			return true
		}
	}
	return false
}

// end asks the daemon to end, which leaves the node as it was.
func (p *product) end() error {
	p.Signal(unix.SIGTERM)
	if st := p.Exited(); st == nil || st.ExitCode() != 0 {
		return fmt.Errorf("the daemon ended with %v", st)
	}
	return nil
}
