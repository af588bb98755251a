// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/overlane/overlane/internal/netns"
)

// Kind says by which interface of the kernel a setting is reached.
type Kind string

const (
	// SysfsAttr is a file below class/net/<device>/.
	SysfsAttr Kind = "sysfs"
	// EthtoolFeature is an offload by its kernel name ("rx-gro",
	// "rx-udp-gro-forwarding"). Its values are "on" and "off", and "off
	// [requested on]" or the reverse where what was requested is not what
	// is done.
	EthtoolFeature Kind = "ethtool"
	// Sysctl is a file below /proc/sys/net, per network namespace.
	Sysctl Kind = "sysctl"
	// ThreadSched is the scheduling of a kernel thread; see Thread and Sched.
	ThreadSched Kind = "sched"
	// OwnDevice is a device that overlane makes for itself: Attr is its name, the value
	// what OwnVeth spells, or NoDevice.
	OwnDevice Kind = "device"
	// Superblock is whether a namespace's superblock of the file system that Attr names, SysfsType, is
	// ReadOnly or Writable. No plan has it as a step: it is changed for as long as attributes are
	// written.
	Superblock Kind = "superblock"
)

// SysfsType is the file system of attributes, ReadOnly and Writable what its superblock may be.
const (
	SysfsType = "sysfs"
	ReadOnly  = "ro"
	Writable  = "rw"
)

// SysfsOf is the setting that stands for the sysfs superblock of a namespace.
func SysfsOf(netnsCookie uint64) Setting {
	return Setting{Target: Target{NetnsCookie: netnsCookie}, Kind: Superblock, Attr: SysfsType}
}

// Target identifies a network device for the life of the machine, as far as
// the kernel allows: names and indices are reused, cookies are not.
type Target struct {
	// NetnsCookie is that of the namespace in which the device lives.
	NetnsCookie uint64 `json:"netns"`
	// Ifindex is 0 for a setting that belongs to the namespace as a whole.
	Ifindex int    `json:"ifindex,omitempty"`
	Name    string `json:"device,omitempty"`
}

func (t Target) String() string {
	if t.Ifindex == 0 {
		return fmt.Sprintf("network namespace %d", t.NetnsCookie)
	}
	return fmt.Sprintf("%s (ifindex %d in network namespace %d)", t.Name, t.Ifindex, t.NetnsCookie)
}

// Setting is one value that outlives the process that writes it. It is
// comparable: two equal settings are the same value in the kernel.
type Setting struct {
	Target
	Kind Kind `json:"kind"`
	// Attr is a path below the device's sysfs folder, a feature's name, a
	// path below /proc/sys, or what Thread returns.
	Attr string `json:"attr"`
}

func (s Setting) String() string {
	if s.Kind == ThreadSched {
		if id, err := ParseThread(s.Attr); err == nil {
			return fmt.Sprintf("scheduling of %s (pid %d)", id.Comm, id.PID)
		}
	}
	if s.Kind == Superblock {
		return s.Attr + " superblock of " + s.Target.String()
	}
	return s.Attr + " of " + s.Target.String()
}

// Validate rejects a setting that could reach anything but a network
// device's attribute or feature, a network sysctl, a thread's scheduling or a
// device of our own.
func (s Setting) Validate() error {
	if err := s.validate(); err != nil {
		return fmt.Errorf("%s setting %q: %w", s.Kind, s.Attr, err)
	}
	return nil
}

func (s Setting) validate() error {
	needsDevice := s.Kind == SysfsAttr || s.Kind == EthtoolFeature
	switch {
	case needsDevice && (s.Ifindex <= 0 || s.Name == ""):
		return errors.New("no device named")
	case s.Name == "." || s.Name == ".." || strings.ContainsAny(s.Name, "/\x00"):
		return fmt.Errorf("device name %q: not a name the kernel would give", s.Name)
	case s.NetnsCookie == 0 && s.Kind != ThreadSched:
		return errors.New("no network namespace named")
	}
	switch s.Kind {
	case SysfsAttr:
		if !fs.ValidPath(s.Attr) || s.Attr == "." {
			return errors.New("not a path below the device's folder")
		}
	case Sysctl:
		if !fs.ValidPath(s.Attr) || !strings.HasPrefix(s.Attr, "net/") {
			return errors.New("not a path below net/")
		}
	case EthtoolFeature:
		if s.Attr == "" {
			return errors.New("no feature named")
		}
	case ThreadSched:
		_, err := ParseThread(s.Attr)
		return err
	case OwnDevice:
		if !netns.ValidDeviceName(s.Attr) {
			return errors.New("not a name that a device can have")
		}
	case Superblock:
		if s.Attr != SysfsType || s.Ifindex != 0 {
			return errors.New("not the sysfs of a network namespace")
		}
	default:
		return errors.New("unknown kind")
	}
	return nil
}

// Canonical returns the one spelling by which values of the setting are
// compared: the kernel prints masks with leading zeros and commas, sysctls
// with tabs, and ends lines.
func (s Setting) Canonical(value string) string {
	value = strings.Join(strings.Fields(value), " ")
	switch s.Kind {
	case SysfsAttr, Sysctl:
		switch path.Base(s.Attr) {
		case "rps_cpus", "xps_cpus", "xps_rxqs", "rps_default_mask":
			return canonicalMask(value)
		}
	case ThreadSched:
		if sched, err := ParseSched(value); err == nil {
			return sched.String()
		}
	}
	return value
}

// Same reports whether two spellings mean the same value.
func (s Setting) Same(a, b string) bool { return s.Canonical(a) == s.Canonical(b) }

// Requested returns the part of a feature's value that was asked for, and
// that asking again brings back: the "on" of "off [requested on]".
func Requested(feature string) string {
	if _, r, ok := strings.Cut(feature, " [requested "); ok {
		return strings.TrimSuffix(r, "]")
	}
	return feature
}
