// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/polled"
)

// Namespaces finds network namespaces. The handles stay the property of the
// implementation and have to live as long as the call they are used in.
type Namespaces interface {
	// ByCookie returns ErrNoNamespace if the namespace is surely gone, and
	// another error, as ErrUnseen, if that is not certain.
	ByCookie(cookie uint64) (*netns.Handle, error)
}

// hinter is a Namespaces that finds faster when it knows inode numbers.
type hinter interface{ Hint(cookie, inode uint64) }

// mounted is a Namespaces that has /sys open, as some of them see it. It stays the property of the
// implementation. To mount it anew takes several times what a device takes.
type mounted interface {
	Sysfs(cookie uint64) (*os.Root, error)
}

// errGone means that a setting exists no more, errOther that something else
// bears the device's index now.
var (
	errGone  = errors.New("device is gone")
	errOther = errors.New("another device has the index now")
)

// settingPlace is a setting's place in the kernel, found and identified.
type settingPlace struct {
	plan.Setting
	inode  uint64
	addr   string
	handle *netns.Handle
	// dev is the device's sysfs folder. It stays the device's own, whatever
	// the device is called later, and is dead when the device is gone.
	dev *os.Root
	// sysfs is that of the namespace, for a plan.Superblock.
	sysfs *os.Root
	k     *kernel
}

// kernel reaches settings for the time of one call.
type kernel struct {
	ns    Namespaces
	sysfs map[uint64]*os.Root // by cookie; ours
	devs  map[plan.Target]*settingPlace
	polls func() int // polled.Core, looked for once
	// announced are the namespaces of which the journal says that their sysfs superblocks are made writable
	// now and then; opened is the one that is.
	announced map[uint64]bool
	opened    *settingPlace
}

func newKernel(ns Namespaces) *kernel {
	return &kernel{ns: ns, sysfs: make(map[uint64]*os.Root), devs: make(map[plan.Target]*settingPlace), announced: make(map[uint64]bool), polls: sync.OnceValue(polled.Core)}
}

func (k *kernel) close() {
	for _, d := range k.devs {
		_ = d.dev.Close() // read-only descriptors of folders
	}
	for _, r := range k.sysfs {
		_ = r.Close()
	}
}

// find returns where the setting is now. The errors errGone, errOther and
// ErrNoNamespace are certain; any other means that it is not known.
func (k *kernel) find(e Entry) (*settingPlace, error) {
	if e.Kind == plan.ThreadSched {
		return &settingPlace{Setting: e.Setting, k: k}, findThread(e.Attr)
	}
	if h, ok := k.ns.(hinter); ok && e.Inode != 0 {
		h.Hint(e.NetnsCookie, e.Inode)
	}
	if e.Ifindex == 0 {
		h, err := k.ns.ByCookie(e.NetnsCookie)
		if err != nil {
			return nil, err
		}
		at := &settingPlace{Setting: e.Setting, inode: h.Inode(), handle: h, k: k}
		if e.Kind == plan.Superblock {
			at.sysfs, err = k.root(h, e.NetnsCookie)
		}
		return at, err
	}
	dev, err := k.device(e.Target, e.Addr)
	if err != nil {
		return nil, err
	}
	at := *dev
	at.Kind, at.Attr = e.Kind, e.Attr
	return &at, nil
}

func (k *kernel) device(t plan.Target, addr string) (*settingPlace, error) {
	if d := k.devs[t]; d != nil {
		return d, nil
	}
	h, err := k.ns.ByCookie(t.NetnsCookie)
	if err != nil {
		return nil, err
	}
	root, err := k.root(h, t.NetnsCookie)
	if err != nil {
		return nil, err
	}
	name, err := nameOf(root, t, addr)
	if err != nil {
		return nil, err
	}
	dev, err := root.OpenRoot("class/net/" + name)
	if err != nil {
		return nil, gone(err)
	}
	d := &settingPlace{Setting: plan.Setting{Target: t}, inode: h.Inode(), handle: h, dev: dev, k: k}
	d.Name = name
	// Once more, now that the folder is held: the name may have moved on.
	index, err := readIfindex(dev, ".")
	if err == nil && index != t.Ifindex {
		err = errGone
	}
	if err == nil {
		d.addr, err = readIdentity(dev, "address")
	}
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	k.devs[t] = d
	return d, nil
}

// root is /sys as a namespace sees it.
func (k *kernel) root(h *netns.Handle, cookie uint64) (*os.Root, error) {
	if root := k.sysfs[cookie]; root != nil {
		return root, nil
	}
	if m, ok := k.ns.(mounted); ok {
		if root, err := m.Sysfs(cookie); err == nil {
			return root, nil
		}
	}
	root, err := h.Sysfs()
	if err == nil {
		k.sysfs[cookie] = root
	}
	return root, err
}

// nameOf returns the name that the target has now. A device with the same
// index and another name is the same one, renamed, if it has kept its
// hardware address.
func nameOf(sysfs *os.Root, t plan.Target, addr string) (string, error) {
	index, err := readIfindex(sysfs, "class/net/"+t.Name)
	if err == nil && index == t.Ifindex {
		return t.Name, nil
	}
	if err != nil && !errors.Is(err, errGone) {
		return "", err
	}
	names, err := fs.ReadDir(sysfs.FS(), "class/net")
	if err != nil {
		return "", fmt.Errorf("list devices: %w", err)
	}
	for _, n := range names {
		index, err := readIfindex(sysfs, "class/net/"+n.Name())
		switch {
		case errors.Is(err, errGone):
			continue // not a device (bonding_masters), or gone by now
		case err != nil:
			return "", err // it may be this one
		case index != t.Ifindex:
			continue
		}
		has, err := readIdentity(sysfs, "class/net/"+n.Name()+"/address")
		switch {
		case err != nil:
			return "", err
		case addr != "" && has == addr:
			return n.Name(), nil
		}
		return "", fmt.Errorf("%w: %s", errOther, n.Name())
	}
	return "", errGone
}

// DeviceGone tells that no device has the target's index in the namespace whose /sys it is given: a renamed
// device is still there. Where that cannot be read it is not gone.
func DeviceGone(sysfs *os.Root, t plan.Target) bool {
	_, err := nameOf(sysfs, t, "")
	return errors.Is(err, errGone)
}

func readIfindex(root *os.Root, dir string) (int, error) {
	s, err := readIdentity(root, dir+"/ifindex")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(s)
}

// readIdentity reads an attribute that each device has. EINVAL is the kernel's answer for one that is being
// unregistered (dev_isalive, net/core/net-sysfs.c).
func readIdentity(root *os.Root, name string) (string, error) {
	s, err := netns.ReadAttr(root, name)
	if errors.Is(err, unix.EINVAL) {
		return "", errGone
	}
	return s, gone(err)
}

// gone turns what the kernel says about a device that has left into errGone.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOTDIR) {
		return errGone
	}
	return err
}

func certainlyGone(err error) bool {
	return errors.Is(err, errGone) || errors.Is(err, ErrNoNamespace)
}

// accessors read and write settings, by their kind: of all kinds that Setting.Validate lets through.
var accessors = map[plan.Kind]struct {
	get func(*settingPlace) (string, error)
	put func(*settingPlace, string) error
}{
	plan.SysfsAttr:      {(*settingPlace).getAttr, (*settingPlace).putAttr},
	plan.EthtoolFeature: {(*settingPlace).getFeature, (*settingPlace).putFeature},
	plan.Sysctl:         {(*settingPlace).getSysctl, (*settingPlace).putSysctl},
	plan.ThreadSched:    {(*settingPlace).getSched, (*settingPlace).putSched},
	plan.OwnDevice:      {(*settingPlace).getDevice, (*settingPlace).putDevice},
	plan.Superblock:     {(*settingPlace).getSuperblock, (*settingPlace).putSuperblock},
}

// get reads the value, in its canonical spelling.
func (s *settingPlace) get() (string, error) {
	v, err := accessors[s.Kind].get(s)
	if err != nil {
		return "", err
	}
	return s.Canonical(v), nil
}

// put writes the value and reads it back: the kernel may accept a value and
// keep another.
func (s *settingPlace) put(value string) error { return s.write(value, false) }

// putBack is put for a value seen earlier. Of an offload, what was requested
// is what counts: whether it is active may depend on others by now.
func (s *settingPlace) putBack(value string) error {
	return s.write(value, s.Kind == plan.EthtoolFeature)
}

func (s *settingPlace) write(value string, requestCounts bool) error {
	if err := s.k.reach(s); err != nil {
		return err
	}
	if err := accessors[s.Kind].put(s, value); err != nil {
		return err
	}
	now, err := s.get()
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	if requestCounts {
		now, value = plan.Requested(now), plan.Requested(value)
	}
	if !s.Same(now, value) {
		return fmt.Errorf("the kernel took %s and has %s", value, now)
	}
	return nil
}

// writeAttr writes in one call: an attribute's store sees each write alone.
func writeAttr(root *os.Root, name, value string) error {
	f, err := root.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// left reports whether the place exists no more.
func (s *settingPlace) left() bool {
	if s.Kind == plan.ThreadSched {
		return errors.Is(findThread(s.Attr), errGone)
	}
	if s.dev == nil {
		return false // the handle keeps the namespace
	}
	index, err := readIfindex(s.dev, ".")
	return errors.Is(err, errGone) || err == nil && index != s.Ifindex
}
