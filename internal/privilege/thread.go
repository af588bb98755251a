// SPDX-License-Identifier: Apache-2.0

package privilege

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// thread is what a thread may do. The kernel keeps this for each thread apart.
type thread struct {
	permitted, effective, inheritable, bounding, ambient Set
	noNewPrivs                                           bool
}

// Held are the capabilities that the calling thread may use.
func Held() (Set, error) {
	t, err := current()
	return t.permitted, err
}

// current reads what the calling thread may do.
func current() (t thread, err error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return t, fmt.Errorf("read capabilities: %w", err)
	}
	word := func(low, high uint32) Set { return Set(low) | Set(high)<<32 }
	t.permitted = word(data[0].Permitted, data[1].Permitted)
	t.effective = word(data[0].Effective, data[1].Effective)
	t.inheritable = word(data[0].Inheritable, data[1].Inheritable)
	for c := Capability(0); ; c++ {
		in, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // the kernel knows no more of them
		}
		if err != nil {
			return t, fmt.Errorf("read bounding set: %w", err)
		}
		above, err := unix.PrctlRetInt(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_IS_SET, uintptr(c), 0, 0)
		if err != nil {
			return t, fmt.Errorf("read ambient set: %w", err)
		}
		if in == 1 {
			t.bounding |= Of(c)
		}
		if above == 1 {
			t.ambient |= Of(c)
		}
	}
	set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil {
		return t, fmt.Errorf("read no_new_privs: %w", err)
	}
	t.noNewPrivs = set == 1
	return t, nil
}

// within tells whether a thread can neither use nor get more than is to be kept. Without
// CAP_SETPCAP no process can make a bounding set smaller; beside no_new_privs it gives nothing then,
// since no exec adds to what is permitted (cap_bprm_creds_from_file, security/commoncap.c).
func (t thread) within(keep Set) bool {
	has := t.permitted | t.effective | t.inheritable | t.ambient
	if t.effective.Has(unix.CAP_SETPCAP) {
		has |= t.bounding
	}
	return has&^keep == 0 && t.noNewPrivs
}

// limit takes all but what is to be kept from the calling thread, for good: from each of its sets,
// and from whatever it executes.
func limit(keep Set) error {
	t, err := current()
	if err != nil {
		return err
	}
	if t.effective.Has(unix.CAP_SETPCAP) {
		for _, c := range (t.bounding &^ keep).Capabilities() {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
				return fmt.Errorf("take %s from the bounding set: %w", c, err)
			}
		}
	}
	// What is not inheritable leaves the ambient set by itself.
	if err := set(t.permitted&keep, t.effective&keep, t.inheritable&keep); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// capUser spells sets as the kernel takes them.
func capUser(permitted, effective, inheritable Set) (hdr unix.CapUserHeader, data [2]unix.CapUserData) {
	hdr.Version = unix.LINUX_CAPABILITY_VERSION_3
	for i := range data {
		shift := 32 * i
		data[i] = unix.CapUserData{
			Permitted:   uint32(permitted >> shift),
			Effective:   uint32(effective >> shift),
			Inheritable: uint32(inheritable >> shift),
		}
	}
	return hdr, data
}

func set(permitted, effective, inheritable Set) error {
	hdr, data := capUser(permitted, effective, inheritable)
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}
