// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism/pipeline"
	"github.com/overlane/overlane/test/process"
	"github.com/overlane/overlane/test/residue"
)

// splitFlows is a process of its own that splits flows of the host that it is started in.
func splitFlows(args []string) error {
	if len(args) != 1 {
		return errors.New("one argument is needed: the state folder")
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	opts := options(args[0], os.Stderr)
	splits(governor.XDP, 32, 1)(&opts)
	d, err := daemon.Start(ctx, opts)
	if err != nil {
		return err
	}
	return d.Run(ctx)
}

// splitterIn starts one in a host.
func splitterIn(t *testing.T, h *host, state string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", splitter, state)
	var log strings.Builder
	cmd.Stderr = &log
	if err := h.ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if t.Failed() {
			t.Logf("the daemon with pid %d said:\n%s", cmd.Process.Pid, log.String())
		}
	})
	return cmd
}

// childOf is the one child of a process.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(data), ") ")
		if field := strings.Fields(rest); len(field) > 1 && field[1] == strconv.Itoa(pid) {
			child, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			if err != nil {
				t.Fatal(err)
			}
			return child
		}
	}
	t.Fatalf("process %d has no child", pid)
	return 0
}

// resequencer is a host's resequencer: none without an index.
type resequencer struct {
	ifindex int
	sent    uint64 // packets so far
	held    uint32 // packets that it has
}

func (h *host) resequencer(t *testing.T) (m resequencer) {
	t.Helper()
	err := in(h.net, func(nl *netlink.Handle) error {
		dev, err := nl.LinkByName(pipeline.MergeDevice)
		var none netlink.LinkNotFoundError
		if errors.As(err, &none) {
			return nil
		}
		if err != nil {
			return err
		}
		m.ifindex = dev.Attrs().Index
		list, err := nl.QdiscList(dev)
		for _, q := range list {
			if strings.HasPrefix(q.Type(), "overlane") {
				st := q.Attrs().Statistics
				m.sent, m.held = uint64(st.Basic.Packets), st.Queue.Qlen
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A connection outlives the daemon that splits it, with its guardian or without.
func mergeOutlivesItsDaemon(t *testing.T) {
	s := lay(t, bridged)
	b := &s.hosts[1]
	residue.Check(t, s.all())
	p, state := s.pour(t, v4), t.TempDir()
	act := func() *exec.Cmd {
		t.Helper()
		was := b.resequencer(t).ifindex
		cmd := splitterIn(t, b, state)
		until(t, "a new resequencer has sent 1000 packets", func() bool {
			m := b.resequencer(t)
			return m.ifindex != was && m.sent >= 1000
		})
		return cmd
	}
	kill := func(pids ...int) {
		t.Helper()
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatalf("kill %d: %v", pid, err)
			}
		}
	}

	first := act()
	kill(first.Process.Pid)
	_ = first.Wait() // killed
	until(t, "the guardian takes the resequencer away", func() bool { return b.resequencer(t).ifindex == 0 })
	p.reach(t, 2<<20)

	second := act()
	guardian := childOf(t, second.Process.Pid)
	if err := process.Stop(second.Process.Pid); err != nil {
		t.Fatal(err)
	}
	kill(guardian, second.Process.Pid)
	_ = second.Wait() // killed
	p.reach(t, 4<<20)
	if b.resequencer(t).ifindex == 0 {
		t.Fatal("the resequencer was taken away")
	}
	until(t, "nothing waits at a resequencer that no daemon looks after", func() bool { return b.resequencer(t).held == 0 })

	// What the next daemon does first, and `overlane off`.
	err := b.ns.Do(func() error {
		cookie, err := b.ns.Cookie()
		if err == nil {
			_, err = apply.RestoreLeft(state, cookie)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if b.resequencer(t).ifindex != 0 {
		t.Error("the resequencer is still there")
	}
	p.reach(t, 2<<20)
	p.finish(t)
}
