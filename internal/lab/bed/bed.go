// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/overlane/overlane/internal/netns"
)

// Pod is a container's namespace with its veth: eth0 inside, HostEnd outside.
type Pod struct {
	Name    string
	NS      *netns.Handle
	HostEnd string
	MAC     MAC
	IP4     netip.Addr
	IP6     netip.Addr // set also when the bed has no IPv6
}

// Host is one of the two machines.
type Host struct {
	Name string
	NS   *netns.Handle
	// Overlay is where tunnel, bridge and host ends are: NS, unless nested.
	Overlay *netns.Handle
	Wire    string
	IP      netip.Addr
	WireMAC MAC
	Pods    []Pod
}

// Bed is a lab that is up. Its handles keep the namespaces alive until Close.
type Bed struct {
	Options
	// Cores are the roles of this machine's cores.
	Cores Cores
	Hosts [2]Host
	names map[string]*netns.Handle
	// released: a variant schedules the wire's NAPI threads.
	released bool
}

// Tunnel is the name of the VXLAN device in each host's Overlay namespace, and
// PodDev that of the pods' own devices.
const (
	Tunnel = "vx0"
	Bridge = "br0"
	PodDev = "eth0"
)

// ErrExists and ErrNotUp say that a lab of this name is, or is not, there.
var (
	ErrExists = errors.New("a lab of this name is up")
	ErrNotUp  = errors.New("no lab of this name is up")
)

// Up builds a bed. When it fails, what it had built is gone again.
func Up(o Options) (*Bed, error) {
	if err := o.Normalize(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("building a lab needs root: it creates network namespaces (try sudo)")
	}
	// The record comes first, so that Down finds what a killed Up began.
	if err := record(&o); err != nil {
		return nil, err
	}
	b, err := create(o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("build lab %s: %w", o.Name, err), Down(o.StateDir, o.Name))
	}
	return b, nil
}

func create(o Options) (*Bed, error) {
	for _, host := range o.HostNames() {
		if err := addNamed(o.nsName(host)); err != nil {
			return nil, err
		}
	}
	b, err := attach(o)
	if err != nil {
		return nil, err
	}
	if err := b.build(); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// Open returns the bed that an earlier Up built, perhaps of another process.
func Open(stateDir, name string) (*Bed, error) {
	o, err := load(stateDir, name)
	if err != nil {
		return nil, err
	}
	return attach(*o)
}

// attach opens the namespaces of a bed and says what should be in them.
func attach(o Options) (*Bed, error) {
	b := &Bed{Options: o, Cores: o.PlaceCores(), names: map[string]*netns.Handle{}}
	for _, host := range o.HostNames() {
		h, err := netns.OfName(o.nsName(host))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lab %s is damaged, run overlane lab down --name %s: %w", o.Name, o.Name, err), b.Close())
		}
		b.names[host] = h
	}
	for _, s := range []Side{A, B} {
		h := &b.Hosts[s]
		*h = Host{Name: "h" + s.String(), Wire: wireDev(s), IP: wireIP(s), WireMAC: wireMAC(s)}
		h.NS = b.names[h.Name]
		h.Overlay = h.NS
		if o.Topology == Nested {
			h.Overlay = b.names["o"+s.String()]
		}
		for n := range o.Pods {
			name := numbered("c"+s.String(), n)
			h.Pods = append(h.Pods, Pod{Name: name, NS: b.names[name], HostEnd: numbered("ve"+s.String(), n),
				MAC: podMAC(s, n), IP4: podIP4(s, n), IP6: podIP6(s, n)})
		}
	}
	return b, nil
}

// Sender and Receiver are the two hosts.
func (b *Bed) Sender() *Host   { return &b.Hosts[A] }
func (b *Bed) Receiver() *Host { return &b.Hosts[B] }

// Namespace returns a namespace by the name that exec takes: hA, hB, cA, cB2 ...
func (b *Bed) Namespace(host string) (*netns.Handle, error) {
	h, ok := b.names[host]
	if !ok {
		return nil, fmt.Errorf("lab %s has no host %q: it has %v", b.Name, host, b.HostNames())
	}
	return h, nil
}

// Close lets go of the bed, which stays up.
func (b *Bed) Close() error {
	var errs []error
	for _, h := range b.names {
		errs = append(errs, h.Close())
	}
	return errors.Join(errs...)
}

// Down ends the bed and closes it.
func (b *Bed) Down() error {
	return errors.Join(b.Close(), Down(b.StateDir, b.Name))
}

// Dir is the bed's folder under the state directory; it goes with the bed.
func (b *Bed) Dir() string { return filepath.Join(b.StateDir, b.Name) }

const recordName = "lab.json"

func record(o *Options) error {
	if err := os.MkdirAll(o.StateDir, 0o755); err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	dir := filepath.Join(o.StateDir, o.Name)
	if err := os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: end it with overlane lab down --name %s, or choose another --name", ErrExists, o.Name)
	} else if err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, recordName), data, 0o600); err != nil {
		return errors.Join(fmt.Errorf("record lab: %w", err), os.RemoveAll(dir))
	}
	return nil
}

func load(stateDir, name string) (*Options, error) {
	data, err := os.ReadFile(filepath.Join(stateDir, name, recordName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lab %q: %w: build it with overlane lab up --name %s", name, ErrNotUp, name)
	}
	if err != nil {
		return nil, fmt.Errorf("read lab: %w", err)
	}
	o := &Options{}
	if err := json.Unmarshal(data, o); err != nil {
		return nil, fmt.Errorf("read lab %s: %w", name, err)
	}
	o.StateDir = stateDir
	return o, o.Normalize()
}
