// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/ethtool.h.
const (
	ethSSFeatures = 4 // the string set that names the features
	ethStringLen  = 32
)

// ethtoolWords are settings that a driver answers as a row of 32-bit words.
var ethtoolWords = []struct {
	what  string
	cmd   uint32
	words int
}{
	{"channels", unix.ETHTOOL_GCHANNELS, 9},
	{"rings", unix.ETHTOOL_GRINGPARAM, 9},
	{"coalescing", unix.ETHTOOL_GCOALESCE, 23},
	{"private flags", unix.ETHTOOL_GPFLAGS, 2},
}

// readEthtool runs on a thread in the namespace.
func readEthtool(s *Snapshot, ns uint64, rule counts, devices []device) error {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer unix.Close(sock)
	for _, d := range devices {
		if err := readFeatures(s, sock, ns, rule, d); err != nil {
			if gone(err) {
				continue
			}
			return fmt.Errorf("read features of %s: %w", d.name, err)
		}
		for _, w := range ethtoolWords {
			words := make([]uint32, w.words)
			words[0] = w.cmd
			switch err := askDriver(sock, d.name, words); {
			case err == nil:
				s.add(key{ns, d.name, w.what}, rule, "%v", words[1:])
			case errors.Is(err, unix.EOPNOTSUPP), gone(err):
			default:
				return fmt.Errorf("read %s of %s: %w", w.what, d.name, err)
			}
		}
	}
	return nil
}

func readFeatures(s *Snapshot, sock int, ns uint64, rule counts, d device) error {
	info := make([]uint32, 5) // cmd, reserved, mask (64 bits), length of the set
	info[0], info[2] = unix.ETHTOOL_GSSET_INFO, 1<<ethSSFeatures
	if err := askDriver(sock, d.name, info); err != nil {
		return err
	}
	n := int(info[4])

	names := make([]uint32, 3+n*ethStringLen/4)
	names[0], names[1], names[2] = unix.ETHTOOL_GSTRINGS, ethSSFeatures, uint32(n)
	if err := askDriver(sock, d.name, names); err != nil {
		return err
	}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&names[0])), 4*len(names))[12:]

	blocks := (n + 31) / 32
	state := make([]uint32, 2+4*blocks) // per block: available, requested, active, never changed
	state[0], state[1] = unix.ETHTOOL_GFEATURES, uint32(blocks)
	if err := askDriver(sock, d.name, state); err != nil {
		return err
	}
	for i := range n {
		name := text(raw[i*ethStringLen : (i+1)*ethStringLen])
		block, bit := state[2+4*(i/32):], uint32(1)<<(i%32)
		value := "off"
		if block[2]&bit != 0 {
			value = "on"
		}
		if block[0]&bit != 0 && (block[1]^block[2])&bit != 0 {
			value += ", but not as requested"
		}
		if name != "" {
			s.add(key{ns, d.name, "feature " + name}, rule, "%s", value)
		}
	}
	return nil
}

// askDriver sends the words, the first of which is the command, and gets the
// answer in their place.
func askDriver(sock int, dev string, words []uint32) error {
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // the rest of struct ifreq
	}
	copy(request.name[:unix.IFNAMSIZ-1], dev)
	request.data = unsafe.Pointer(&words[0])
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(sock), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(words)
	if errno != 0 {
		return errno
	}
	return nil
}
