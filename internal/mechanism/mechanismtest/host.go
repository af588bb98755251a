// SPDX-License-Identifier: Apache-2.0

// Package mechanismtest has a Host for unit tests of mechanisms: a node that is a map of settings.
package mechanismtest

import (
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
)

// Host is a mechanism.Host.
type Host struct {
	Node     node.Snapshot
	IsAwake  bool
	Values   map[plan.Setting]string // what the kernel has
	Refuses  map[plan.Target]string  // devices that take no value, and why
	Keeps    map[plan.Target]string  // devices whose values cannot be brought back, and why
	Fails    error                   // of the next that is asked of it
	Attached map[node.DevKey]bool    // devices with a program
	Lost     bool                    // no namespace is found
	journal  map[plan.Setting]plan.Step
	Restored int // times that something was taken back
}

// New is a node with such settings, on which packets come.
func New(values map[plan.Setting]string) *Host {
	return &Host{IsAwake: true, Values: values, Refuses: map[plan.Target]string{}, Keeps: map[plan.Target]string{}, Attached: map[node.DevKey]bool{}, journal: map[plan.Setting]plan.Step{}}
}

// Served is a node with a NIC, a tunnel, and a pod behind that.
func Served() node.Snapshot {
	dev := func(name string, index int) node.Dev { return node.Dev{NetnsCookie: 1, Ifindex: index, Name: name} }
	nic, vx := dev("nic", 102), dev("vx0", 103)
	return node.Snapshot{
		Underlays: []node.Underlay{{Dev: nic}},
		Tunnels:   []node.Tunnel{{Dev: vx, VNI: 42, Port: 4789, Underlays: []node.Dev{nic}}},
		Pods:      []node.Pod{{Host: dev("ve1", 104), Peer: dev("eth0", 105), Tunnels: []node.Dev{vx}}},
	}
}

// OverTUN is one whose only tunnel is left alone, for its packets come by a TUN device, and what is said of it.
func OverTUN() (node.Snapshot, string) {
	snap := Served()
	snap.Underlays, snap.Tunnels[0].Underlays = nil, nil
	snap.Skipped = []node.Skip{{Dev: snap.Tunnels[0].Dev, Reason: "left alone: tun0 has no headers", Part: node.TunnelPart}}
	return snap, "no NIC is served: vx0: left alone: tun0 has no headers"
}

// Log is mechanism.Host's.
func (h *Host) Log() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Snapshot is mechanism.Host's.
func (h *Host) Snapshot() node.Snapshot { return h.Node }

// Awake is mechanism.Host's.
func (h *Host) Awake(time.Time) (bool, error) { return h.IsAwake, nil }

// Watchers is mechanism.Host's: they watch nothing.
func (h *Host) Watchers() *shortcut.Watchers { return shortcut.NewWatchers(nil, nil, nil) }

// Owned is mechanism.Host's.
func (h *Host) Owned(by plan.Owner) map[plan.Setting]plan.Owned {
	owned := map[plan.Setting]plan.Owned{}
	for s, step := range h.journal {
		if step.By == by {
			owned[s] = plan.Owned{First: step.First, Wrote: step.Want}
		}
	}
	return owned
}

// Restore is mechanism.Host's.
func (h *Host) Restore(by plan.Owner, which func(plan.Setting) bool) (rep apply.Report, err error) {
	for s, owned := range h.Owned(by) {
		if which != nil && !which(s) {
			continue
		}
		if why := h.Keeps[s.Target]; why != "" {
			rep.Results = append(rep.Results, apply.Result{Setting: s, Outcome: apply.Kept, Reason: why})
			continue
		}
		h.Values[s] = owned.First
		delete(h.journal, s)
		h.Restored++
		rep.Results = append(rep.Results, apply.Result{Setting: s, Outcome: apply.Restored})
	}
	return rep, nil
}

// Forget is mechanism.Host's.
func (h *Host) Forget(func(apply.Entry) bool) error { return nil }

// Unneeded is pipeline.Host's: no device goes.
func (h *Host) Unneeded(by plan.Owner, needed func(plan.Setting) bool) (over []apply.Entry, err error) {
	for s := range h.Owned(by) {
		if !h.Lost && !needed(s) {
			over = append(over, apply.Entry{Setting: s, By: by, Kept: h.Keeps[s.Target]})
		}
	}
	return over, nil
}

// RestoreUnneeded is mechanism.Host's.
func (h *Host) RestoreUnneeded(by plan.Owner, needed func(plan.Setting) bool) (apply.Report, error) {
	return h.Restore(by, func(s plan.Setting) bool { return !h.Lost && !needed(s) })
}

// Attach is mechanism.Host's. Attached has the devices.
func (h *Host) Attach(dev node.Dev, attach func(datapath.Device) (io.Closer, error)) (io.Closer, error) {
	l, err := attach(datapath.Device{Ifindex: dev.Ifindex})
	if err != nil {
		return nil, err
	}
	h.Attached[dev.Key()] = true
	return closer(func() error { delete(h.Attached, dev.Key()); return l.Close() }), nil
}

type closer func() error

func (c closer) Close() error { return c() }

// Scanner is mechanism.Host's: there is none.
func (h *Host) Scanner() *node.Scanner { return nil }

// Owns is mechanism.Host's.
func (h *Host) Owns(uint32) bool { return false }

// Begins is mechanism.Host's.
func (h *Host) Begins(string) (over func()) { return func() {} }

// CarryOut is mechanism.Host's.
func (h *Host) CarryOut(steps []plan.Step) (map[plan.Target]string, error) {
	refused := map[plan.Target]string{}
	for _, s := range steps {
		if why := h.Refuses[s.Target]; why != "" {
			refused[s.Target] = why
			continue
		}
		if h.Values[s.Setting] != s.Was {
			return refused, fmt.Errorf("%s is %q, and was to be %q", s.Setting, h.Values[s.Setting], s.Was)
		}
		h.Values[s.Setting], h.journal[s.Setting] = s.Want, s
	}
	return refused, nil
}
