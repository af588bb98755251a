// SPDX-License-Identifier: Apache-2.0

package privilege

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

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
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return t, fmt.Errorf("read capabilities: %w", err)
	}
	var noNewPrivs Set
	fields := map[string]*Set{
		"CapPrm": &t.permitted, "CapEff": &t.effective, "CapInh": &t.inheritable,
		"CapBnd": &t.bounding, "CapAmb": &t.ambient, "NoNewPrivs": &noNewPrivs,
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		if fields[key] == nil {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return t, fmt.Errorf("read capabilities: %s: %w", key, err)
		}
		*fields[key] = Set(n)
		delete(fields, key)
	}
	if len(fields) > 0 {
		return t, errors.New("read capabilities: /proc/thread-self/status does not tell all of them")
	}
	t.noNewPrivs = noNewPrivs == 1
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
	hdr, data := capUser(t.permitted&keep, t.effective&keep, t.inheritable&keep)
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
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
