// SPDX-License-Identifier: Apache-2.0

// Package host is the node as mechanisms use it: devices to attach programs to, settings to change and to take
// back, and what is known of the devices. It knows no mechanism. All of it but Look is for the goroutine of the daemon's
// loop alone.
package host

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/shortcut"
)

// Host is a node that overlane acts on.
type Host struct {
	Changes   *Changes
	log       *slog.Logger
	dp        *datapath.Datapath
	scanner   *node.Scanner
	readings  *readings
	locked    *apply.Locked
	snap      node.Snapshot
	hooks     *shortcut.Hooks // once there are watchers
	beginning string          // the mechanism that is being put in place, while it is
	behind    error           // why the journal's file was not rewritten, when that was last tried
}

// New is a host that has not been scanned yet. Changes of settings are noted in changes.
func New(log *slog.Logger, changes *Changes, locked *apply.Locked, dp *datapath.Datapath, scanner *node.Scanner) *Host {
	locked.Tell(changes.setting)
	return &Host{Changes: changes, log: log, dp: dp, scanner: scanner, readings: newReadings(scanner), locked: locked}
}

// Close lets go of what the host has loaded itself.
func (h *Host) Close() error {
	if h.hooks == nil {
		return nil
	}
	return h.hooks.Close()
}

// Log is the daemon's.
func (h *Host) Log() *slog.Logger { return h.log }

// Scan reads the node anew.
func (h *Host) Scan(ctx context.Context) error {
	take, err := h.Look(ctx)
	if err == nil {
		take()
	}
	return err
}

// Look is the part of Scan that takes long, for a goroutine of its own. The host is as it was until take is called,
// on that of the loop.
func (h *Host) Look(ctx context.Context) (take func(), err error) {
	seen, err := h.scanner.Look(ctx)
	if err != nil {
		return nil, err
	}
	return func() {
		h.snap = seen()
		h.followNames()
	}, nil
}

// Snapshot is the node as it was last scanned.
func (h *Host) Snapshot() node.Snapshot { return h.snap }

// Scanner reads the node as it is now.
func (h *Host) Scanner() *node.Scanner { return h.scanner }

// Owns tells of a BPF program that it is overlane's.
func (h *Host) Owns(progID uint32) bool { return h.dp.Owns(progID) }

// Watchers are new, to be closed. They share the program that reads tcx hooks.
func (h *Host) Watchers() *shortcut.Watchers {
	if h.hooks == nil {
		var err error
		if h.hooks, err = shortcut.LoadHooks(); err != nil {
			h.log.Debug("each device is asked for its tcx hooks", "reason", err)
		}
	}
	return shortcut.NewWatchers(h.scanner, h.dp.Owns, h.hooks)
}

// SetTunnels tells the programs which tunnels and underlays of a node to look at. datapath.ErrTooManyTunnels: some are
// left out.
func (h *Host) SetTunnels(snap node.Snapshot) error {
	return h.dp.SetTunnels(h.tunnelDevices(snap), h.underlayDevices(snap))
}

func (h *Host) underlayDevices(snap node.Snapshot) []datapath.CellDevice {
	var devs []datapath.CellDevice
	for _, dev := range snap.Receivers() {
		if ino, found := h.inode(dev.NetnsCookie); found {
			devs = append(devs, datapath.CellDevice{Ifindex: dev.Ifindex, NetnsIno: ino})
		}
	}
	return devs
}

func (h *Host) tunnelDevices(snap node.Snapshot) []datapath.TunnelDevice {
	var devs []datapath.TunnelDevice
	for _, t := range snap.Tunnels {
		ino, found := h.inode(t.NetnsCookie)
		if !found {
			continue
		}
		devs = append(devs, datapath.TunnelDevice{
			Kind: t.Kind, VNI: t.VNI, AnyVNI: t.AnyVNI, Port: t.Port,
			Ifindex: t.Ifindex, NetnsIno: ino, Outer: t.Outer,
			NoGRO: func() bool {
				on, err := h.scanner.GRO(t.Dev)
				return t.GenericXDP || err == nil && !on
			},
		})
	}
	return devs
}

// Begins notes a mechanism that is put in place, until over is called. Its programs may have to be loaded for that,
// and the daemon answers meanwhile.
func (h *Host) Begins(mechanism string) (over func()) {
	h.beginning = mechanism
	return func() { h.beginning = "" }
}

// Beginning is the mechanism that is being put in place, or empty.
func (h *Host) Beginning() string { return h.beginning }

// Attach attaches a program to a device, and has the log tell of it. node.ErrGone: the device has gone.
func (h *Host) Attach(dev node.Dev, attach func(datapath.Device) (io.Closer, error)) (io.Closer, error) {
	ns, err := h.scanner.Namespace(dev.NetnsCookie)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	l, err := attach(datapath.Device{Netns: ns, Ifindex: dev.Ifindex})
	if errors.Is(err, unix.ENODEV) {
		err = errors.Join(node.ErrGone, err)
	}
	if err != nil {
		return nil, err
	}
	return h.Changes.attached(dev, l), nil
}
