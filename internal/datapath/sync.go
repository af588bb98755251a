// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cilium/ebpf"
)

// Shortcut is where frames of the latency class for a pod go from a tunnel: straight to
// the other end of a veth.
type Shortcut struct {
	Host   int // ifindex of the veth's end in the tunnel's namespace
	MaxLen int // longer frames go by the bridge
	// Refresh is how often the bridge is to see a frame of each sender. 0: never.
	Refresh time.Duration
}

// ShortcutKey is a tunnel, by its number in its namespace, and a pod's address. Tunnels
// in two namespaces may have one number: then neither may have a redirect path.
type ShortcutKey struct {
	Tunnel int
	MAC    [6]byte
}

// Shortcuts is the loaded kernel side of priority's mode sync.
type Shortcuts struct {
	d    *Datapath
	objs syncObjects
	have map[ShortcutKey]Shortcut
}

// LoadShortcuts puts the program into the kernel. It does nothing before SetShortcuts.
func (p *Priority) LoadShortcuts() (*Shortcuts, error) {
	s := &Shortcuts{d: p.d, have: map[ShortcutKey]Shortcut{}}
	if err := p.d.loadObject("the program for redirect paths", loadSync, &s.objs, forAWhile); err != nil {
		return nil, err
	}
	return s, nil
}

// Close unloads the program. Attachments are closed one by one before.
func (s *Shortcuts) Close() error { return s.objs.Close() }

// AttachTunnel attaches the program behind the other tcx programs of a tunnel's ingress.
// Closing what it returns takes it off again.
func (s *Shortcuts) AttachTunnel(dev Device) (io.Closer, error) {
	return s.d.attachTCX(dev, ebpf.AttachTCXIngress, s.objs.OlTunnelIn)
}

// maxRefresh fits what the kernel side counts in.
const maxRefresh = 30 * time.Minute

// Set makes these the redirect paths.
func (s *Shortcuts) Set(want map[ShortcutKey]Shortcut) error {
	for k := range s.have {
		if _, ok := want[k]; ok {
			continue
		}
		if err := s.objs.OlShortcuts.Delete(k.abi()); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("take away a redirect path: %w", err)
		}
		delete(s.have, k)
	}
	for k, v := range want {
		if s.have[k] == v {
			continue
		}
		value := syncOlShortcut{Host: uint32(v.Host), MaxLen: uint32(v.MaxLen), RefreshUs: uint32(min(v.Refresh, maxRefresh) / time.Microsecond)}
		if err := s.objs.OlShortcuts.Put(k.abi(), value); err != nil {
			return fmt.Errorf("write a redirect path: %w", err)
		}
		s.have[k] = v
	}
	return nil
}

func (k ShortcutKey) abi() syncOlShortcutKey {
	return syncOlShortcutKey{Ifindex: uint32(k.Tunnel), Mac: k.MAC}
}

// Owns tells whether a program is overlane's.
func (d *Datapath) Owns(id uint32) bool { return d.programs[id] }

// know remembers the numbers of an object's programs.
func (d *Datapath) know(programs ...*ebpf.Program) error {
	for _, p := range programs {
		info, err := p.Info()
		if err != nil {
			return fmt.Errorf("read program: %w", err)
		}
		if id, ok := info.ID(); ok {
			d.programs[uint32(id)] = true
		}
	}
	return nil
}
