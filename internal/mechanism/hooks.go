// SPDX-License-Identifier: Apache-2.0

package mechanism

import (
	"errors"
	"io"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// ErrMore says that programs are still to be attached or detached.
var ErrMore = errors.New("there are more devices")

// AttachFor is how long programs are attached to devices at once while the daemon is to decide. For each the kernel
// waits for all cores, with its lock on all devices: beside a saturated core 30 to 100 ms, which with 200 pods is six
// seconds and more.
const AttachFor = 100 * time.Millisecond

// Hooks are the programs that a mechanism has on devices.
type Hooks map[Hook]io.Closer

// Hook is a program on a device.
type Hook struct {
	node.DevKey
	Program string
}

// HookOf is what an attachment comes to.
func HookOf(at plan.Attachment) Hook { return Hook{node.Dev(at.Target).Key(), at.Program} }

// attacher is what Hooks need of a Host.
type attacher interface {
	Attach(dev node.Dev, attach func(datapath.Device) (io.Closer, error)) (io.Closer, error)
}

// Follow attaches the programs of a plan that are not there, and detaches those that it does not have. After so long it
// ends with ErrMore, and is to be called again.
func (h Hooks) Follow(host attacher, planned []plan.Attachment, limit time.Duration, attach func(datapath.Device) (io.Closer, error)) error {
	want, begun, more, changes := map[Hook]bool{}, time.Now(), false, 0
	late := func() bool { // each call makes one change at least
		more = more || changes > 0 && time.Since(begun) > limit
		changes++
		return more
	}
	var errs []error
	for _, at := range planned {
		want[HookOf(at)] = true
		if h[HookOf(at)] == nil && !late() {
			errs = append(errs, h.Attach(host, at, attach))
		}
	}
	errs = append(errs, h.Keep(func(one Hook) bool { return want[one] || late() }))
	if more {
		errs = append(errs, ErrMore)
	}
	return errors.Join(errs...)
}

// Attach attaches a program unless it is there. That a device has gone is no error.
func (h Hooks) Attach(host attacher, at plan.Attachment, attach func(datapath.Device) (io.Closer, error)) error {
	if h[HookOf(at)] != nil {
		return nil
	}
	l, err := host.Attach(node.Dev(at.Target), attach)
	if errors.Is(err, node.ErrGone) {
		return nil
	}
	if err == nil {
		h[HookOf(at)] = l
	}
	return err
}

// Keep detaches the programs but for these.
func (h Hooks) Keep(which func(Hook) bool) error {
	var errs []error
	for one, l := range h {
		if which(one) {
			continue
		}
		errs = append(errs, l.Close())
		delete(h, one)
	}
	return errors.Join(errs...)
}

// Close detaches all of them.
func (h Hooks) Close() error { return h.Keep(func(Hook) bool { return false }) }
