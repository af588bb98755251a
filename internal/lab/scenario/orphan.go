// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/traffic"
)

// startOrphaned has the pipeline act, and then kills the daemon together with
// its guardian: what stays behind are masks that no process restores.
func startOrphaned(ctx context.Context, e *env, _ scenario) (session, error) {
	d, err := e.startDaemon(ctx, "pipeline: forced\ntier: tc\n")
	if err != nil {
		return session{}, err
	}
	// Any traffic: which cores poll the NIC is not known before.
	first := *e
	first.settle = 300 * time.Millisecond
	_, err = first.live(ctx, offer{flows: 1, size: small, length: 100 * time.Millisecond})
	var c control.Status
	if err == nil {
		c, err = d.status(ctx)
	}
	if err == nil && c.Counters.SteeredPackets == 0 {
		err = errors.New("the pipeline does not act")
	}
	if err == nil {
		err = d.killBoth()
	}
	if err != nil {
		return session{}, errors.Join(err, d.end())
	}
	return session{end: d.off}, nil
}

// killBoth gives the guardian no chance to notice.
func (d *daemon) killBoth() error {
	pid := d.proc.PID()
	guardians, err := children(pid)
	if err != nil {
		return err
	}
	if len(guardians) != 1 {
		return fmt.Errorf("the daemon has %d children, not one guardian", len(guardians))
	}
	err = errors.Join(syscall.Kill(guardians[0], syscall.SIGSTOP), syscall.Kill(pid, syscall.SIGKILL),
		syscall.Kill(guardians[0], syscall.SIGKILL))
	<-d.proc.Done() // only now: the guardian writes where the daemon did
	return err
}

// children lists the processes that a process has started.
func children(pid int) ([]int, error) {
	return processes(func(p procfs.Proc) bool {
		st, err := p.Stat()
		return err == nil && st.PPID == pid
	})
}

// off restores what killed processes have left behind.
func (d *daemon) off() error {
	p, err := traffic.StartProcess(d.env.bed.Receiver().NS, nil, d.env.cfg.Binary, "off", "--state-dir", d.state)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.env.slowly(stopPatience))
	defer cancel()
	if _, err := p.Wait(ctx); err != nil {
		return fmt.Errorf("restore after the kill: %w", err)
	}
	return os.RemoveAll(filepath.Dir(d.state))
}
