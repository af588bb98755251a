// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/overlane/overlane/internal/netns"
)

// Process is a program that runs in a namespace of the lab and does not
// outlive the caller, however that ends.
type Process struct {
	cmd  *exec.Cmd
	name string
	out  bytes.Buffer
	errs bytes.Buffer
	done chan struct{}
	err  error
}

// StartProcess starts a program on the given cores; none: on all.
func StartProcess(ns *netns.Handle, cores []int, argv ...string) (*Process, error) {
	return program{ns: ns, cores: cores}.start(argv...)
}

// program says how a program is to run.
type program struct {
	ns     *netns.Handle
	cores  []int // none: all
	policy policy
	clone  uintptr // clone's flags for namespaces of its own
}

func (p program) start(argv ...string) (*Process, error) {
	path, err := find(argv[0])
	if err != nil {
		return nil, err
	}
	proc := &Process{cmd: exec.Command(path, argv[1:]...), name: argv[0], done: make(chan struct{})}
	proc.cmd.Stdout, proc.cmd.Stderr = &proc.out, &proc.errs
	proc.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: p.clone}
	started := make(chan error, 1)
	go func() {
		defer close(proc.done)
		// The parent death signal follows the thread, not the process: the
		// thread that starts the program has to wait for it.
		proc.err = p.ns.Do(func() error {
			if err := inherit(p.cores, p.policy); err != nil {
				started <- err
				return err
			}
			if err := proc.cmd.Start(); err != nil {
				started <- err
				return err
			}
			started <- nil
			return proc.cmd.Wait()
		})
	}()
	if err := <-started; err != nil {
		<-proc.done
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return proc, nil
}

// serve starts a server and waits until it has its socket on a port.
func (p program) serve(ctx context.Context, open func(*netns.Handle, uint16) (bool, error), port uint16, argv ...string) (*Process, error) {
	proc, err := p.start(argv...)
	if err != nil {
		return nil, err
	}
	if err := proc.awaitSocket(ctx, func() (bool, error) { return open(p.ns, port) }); err != nil {
		proc.kill()
		return nil, err
	}
	return proc, nil
}

// output runs a program and returns what it printed.
func (p program) output(ctx context.Context, argv ...string) ([]byte, error) {
	proc, err := p.start(argv...)
	if err != nil {
		return nil, err
	}
	return proc.Wait(ctx)
}

// PID is the program's process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end and returns what the program printed. When ctx ends
// first, so does the program.
func (p *Process) Wait(ctx context.Context) ([]byte, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		p.kill()
		return nil, ctx.Err()
	}
	if p.err != nil {
		return nil, fmt.Errorf("%s: %w: %s", p.name, p.err, p.lastWords())
	}
	return p.out.Bytes(), nil
}

const (
	// opens is how long a program may take until it has its socket, and Ends until it has ended: on the
	// slowest machine that is emulated, too.
	opens = time.Minute
	Ends  = 20 * time.Second
)

// awaitSocket waits until the program has the socket that it is to open.
func (p *Process) awaitSocket(ctx context.Context, open func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, opens)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := open()
		if ok || err != nil {
			return err
		}
		select {
		case <-p.done:
			_, err := p.Wait(ctx)
			return errors.Join(fmt.Errorf("%s ended instead of opening its socket", p.name), err)
		case <-ctx.Done():
			return fmt.Errorf("%s does not open its socket: %w", p.name, ctx.Err())
		case <-tick.C:
		}
	}
}

func (p *Process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop asks the program to end, and kills it if it does not. The exit status
// is an error only when the program chose it.
func (p *Process) Stop(patience time.Duration) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.kill()
		return fmt.Errorf("%s does not end within %s: %s", p.name, patience, p.lastWords())
	}
	var exit *exec.ExitError
	if errors.As(p.err, &exit) && !exit.Exited() {
		return nil
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w: %s", p.name, p.err, p.lastWords())
	}
	return nil
}

// Logged is what the program has written to its standard error, once it has ended.
func (p *Process) Logged() string {
	<-p.done
	return p.errs.String()
}

// lastWords are the last lines of what an ended program printed.
func (p *Process) lastWords() string {
	<-p.done
	text := strings.TrimSpace(p.errs.String())
	if text == "" {
		text = strings.TrimSpace(p.out.String())
	}
	if len(text) > 500 {
		text = "... " + text[len(text)-500:]
	}
	return text
}
