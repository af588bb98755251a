// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/shell"
)

// ErrGone is returned for a device or namespace that is no longer there.
var ErrGone = errors.New("no longer there")

// Settings are those of a device's receive path that overlane may change.
type Settings struct {
	RPSCPUs    []string // per RX queue, as sysfs writes a mask: "3", "00000001,00000000"
	RPSFlowCnt []uint32 // per RX queue; not 0 where RFS is in use
	TxQueues   int      // in use
	Threaded   bool     // NAPI in threads of its own
	// Owner is the user that they belong to: not root where a user namespace owns the network
	// namespace.
	Owner uint32
	// Unwritable says why they cannot be written whatever they are, empty if they can be.
	Unwritable string
}

// Settings reads the current settings of a device. It fails with ErrGone
// rather than read those of another device that has got its name.
func (s *Scanner) Settings(d Dev) (Settings, error) {
	root, err := s.Sysfs(d.NetnsCookie)
	if err != nil {
		return Settings{}, err
	}
	set, err := settingsIn(root, d)
	if err != nil {
		return Settings{}, err
	}
	set.Unwritable = s.unwritable(d.NetnsCookie, root)
	return set, nil
}

func settingsIn(root *os.Root, d Dev) (Settings, error) {
	dir, err := openDev(root, d)
	if err != nil {
		return Settings{}, err
	}
	defer dir.Close()
	set, err := readSettings(dir)
	if err != nil {
		return Settings{}, fmt.Errorf("read settings of %s: %w", d, errors.Join(isDev(dir, d), err))
	}
	return set, nil
}

// Moves says why the kernel hands on to other cores what a device receives; empty if it does not.
func (s Settings) Moves(device string) string {
	switch {
	case slices.ContainsFunc(s.RPSCPUs, func(mask string) bool { return strings.Trim(mask, "0,") != "" }):
		return shell.See(fmt.Sprintf("RPS moves what %s receives to other cores, where packets would be overtaken", device),
			shell.Command("grep . /sys/class/net/%s/queues/rx-*/rps_cpus", device))
	case slices.ContainsFunc(s.RPSFlowCnt, func(n uint32) bool { return n != 0 }):
		return shell.See(fmt.Sprintf("RFS moves what %s receives to other cores, where packets would be overtaken", device),
			shell.Command("grep . /sys/class/net/%s/queues/rx-*/rps_flow_cnt", device))
	}
	return ""
}

// Moves is Underlay.Moves as it is now: a write to sysfs makes no event.
func (s *Scanner) Moves(u Underlay) string {
	now := ""
	root, err := s.Sysfs(u.NetnsCookie)
	if err == nil {
		now, err = moves(root, u.Receivers)
	}
	if err != nil {
		return u.Moves // the next scan finds out
	}
	return now
}

// moves tells of the devices that receive. One that has gone receives nothing, and a kernel without RPS has no masks.
func moves(root *os.Root, receivers []Receiver) (string, error) {
	for _, r := range receivers {
		set, err := settingsIn(root, r.Dev)
		switch {
		case errors.Is(err, ErrGone) || errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", err
		default:
			if why := set.Moves(r.Name); why != "" {
				return why, nil
			}
		}
	}
	return "", nil
}

// unwritable says why nothing can be written in a namespace's sysfs, empty if it can be. A read-only
// superblock is no reason by itself: it is made writable for a moment, which is tried here without change.
func (s *Scanner) unwritable(cookie uint64, root *os.Root) string {
	readOnly, err := netns.SysfsReadOnly(root)
	if err != nil {
		return err.Error()
	}
	if !readOnly {
		return ""
	}
	s.mu.Lock()
	k := s.known[cookie]
	tried := k != nil && k.switches
	s.mu.Unlock()
	if tried {
		return ""
	}
	if err := netns.ReconfigureSysfs(root, ""); err != nil {
		return fmt.Sprintf("its container's runtime has made the sysfs of its network namespace read-only, which cannot be changed for the moment of a write: %v", err)
	}
	if k != nil {
		s.mu.Lock()
		k.switches = true
		s.mu.Unlock()
	}
	return ""
}

// Features reads what a device can do and does, by the kernel's names. It enters the
// device's namespace and takes the kernel's lock on all devices, as Settings does not.
func (s *Scanner) Features(d Dev) (map[string]ethtool.Feature, error) {
	h, err := s.Namespace(d.NetnsCookie)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	features, err := netns.Read(h, func() (map[string]ethtool.Feature, error) { return ethtool.Features(d.Name) })
	if err != nil {
		return nil, fmt.Errorf("read features of %s: %w", d, err)
	}
	return features, nil
}

// GRO tells whether a device aggregates what it receives.
func (s *Scanner) GRO(d Dev) (on bool, err error) {
	features, err := s.Features(d)
	return features["rx-gro"].Active, err
}

// GROHold is how long a device's GRO may keep packets for others that may come, beyond the
// poll that brought them.
func (s *Scanner) GROHold(d Dev) (time.Duration, error) {
	root, err := s.Sysfs(d.NetnsCookie)
	if err != nil {
		return 0, err
	}
	dir, err := openDev(root, d)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	value, err := netns.ReadAttr(dir, "gro_flush_timeout")
	if err != nil {
		return 0, fmt.Errorf("read settings of %s: %w", d, errors.Join(isDev(dir, d), err))
	}
	ns, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parse gro_flush_timeout of %s: %w", d, err)
	}
	return time.Duration(ns), nil
}

func readSettings(dir *os.Root) (Settings, error) {
	var set Settings
	rx, tx, err := queues(dir)
	if err != nil {
		return set, err
	}
	set.TxQueues = tx
	for i := range rx {
		q := "queues/rx-" + strconv.Itoa(i) + "/"
		mask, err := netns.ReadAttr(dir, q+"rps_cpus")
		if err != nil {
			return set, err
		}
		cnt, err := netns.ReadAttr(dir, q+"rps_flow_cnt")
		if err != nil {
			return set, err
		}
		c, err := strconv.ParseUint(cnt, 10, 32)
		if err != nil {
			return set, fmt.Errorf("parse rps_flow_cnt: %w", err)
		}
		set.RPSCPUs = append(set.RPSCPUs, mask)
		set.RPSFlowCnt = append(set.RPSFlowCnt, uint32(c))
	}
	threaded, err := netns.ReadAttr(dir, "threaded")
	if err != nil {
		return set, err
	}
	set.Threaded = threaded != "0"
	info, err := dir.Stat("threaded")
	if err != nil {
		return set, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		set.Owner = st.Uid
	}
	return set, nil
}

// openDev opens a device's directory in sysfs. The directory stays that of the
// device, whatever happens to the name.
func openDev(root *os.Root, d Dev) (*os.Root, error) {
	dir, err := root.OpenRoot("class/net/" + d.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("device %s: %w", d, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("open device %s: %w", d, err)
	}
	if err := isDev(dir, d); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// isDev fails, with ErrGone, unless a directory is that of a device that is there. One that is being unregistered
// answers with EINVAL (dev_isalive, net/core/net-sysfs.c).
func isDev(dir *os.Root, d Dev) error {
	index, err := netns.ReadAttr(dir, "ifindex")
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.EINVAL):
		return fmt.Errorf("device %s: %w", d, ErrGone)
	case err == nil && index != strconv.Itoa(d.Ifindex):
		return fmt.Errorf("device %s: %w: the name now means device %s", d, ErrGone, index)
	}
	return err
}

// queuesOf counts the RX queues in use of a device.
func queuesOf(root *os.Root, d Dev, allocated int) (int, error) {
	if allocated == 1 {
		return 1, nil
	}
	dir, err := openDev(root, d)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	rx, _, err := queues(dir)
	return rx, err
}

// queues counts the queues in use. The kernel's list of devices only has how many
// were allocated: for a veth one per CPU, of which it uses one.
func queues(dir *os.Root) (rx, tx int, err error) {
	all, err := fs.ReadDir(dir.FS(), "queues")
	if err != nil {
		return 0, 0, fmt.Errorf("count queues: %w", err)
	}
	for _, q := range all {
		if strings.HasPrefix(q.Name(), "rx-") {
			rx++
		} else {
			tx++
		}
	}
	return rx, tx, nil
}
