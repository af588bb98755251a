// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/privilege"
)

// Mount is a network namespace that a process sees mounted. The mount point may be any path, with
// anything over it, in a mount namespace that an ordinary user has made.
type Mount struct {
	PID   string // the process, or self
	Point string // as the process sees it
	Inode uint64
}

// Mounts are the network namespaces in the mount table of a process, which PID names, or self.
func Mounts(pid string) ([]Mount, error) {
	info, err := os.ReadFile("/proc/" + pid + "/mountinfo")
	if err != nil {
		return nil, err
	}
	var list []Mount
	for line := range strings.Lines(string(info)) {
		// id parent major:minor root mountpoint ...
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if inode, ok := InodeOf(fields[3]); ok {
			list = append(list, Mount{pid, unescape(fields[4]), inode})
		}
	}
	return list, nil
}

// InodeOf reads the inode number of a network namespace from what links of /proc and mount tables call
// it: net:[4026531840].
func InodeOf(name string) (uint64, bool) {
	s, ok := strings.CutPrefix(name, "net:[")
	if !ok {
		return 0, false
	}
	inode, err := strconv.ParseUint(strings.TrimSuffix(s, "]"), 10, 64)
	return inode, err == nil
}

// ErrHidden says that what is found at a mount point is not the namespace that is mounted there.
var ErrHidden = errors.New("something is mounted over it")

// resolveCached is RESOLVE_CACHED of linux/openat2.h (Linux 5.12).
const resolveCached = 0x20

// Path is where this process reaches the mount point.
func (m Mount) Path() string { return filepath.Join("/proc", m.PID, "root", m.Point) }

// Open opens the namespace. Of what stands in its place nothing is opened, no link is followed, and no
// file system is asked: the directories on the way to a mount point are in the kernel's cache for as long
// as the mount exists, and one that another user serves (FUSE) might never answer.
func (m Mount) Open() (*Handle, error) {
	var h *Handle
	err := privilege.With(unix.CAP_SYS_PTRACE, func() error {
		root, err := unix.Open("/proc/"+m.PID+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(root)
		place, err := m.place(root)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := errors.Join(isNamespace(place), unix.Fstat(int(place.Fd()), &st)); err != nil || st.Ino != m.Inode {
			return errors.Join(ErrHidden, place.Close())
		}
		h, err = ofPlace(place)
		return err
	})
	if errors.Is(err, ErrHidden) && !m.stands() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("open network namespace net:[%d], mounted at %q for process %s: %w", m.Inode, m.Point, m.PID, err)
	}
	return h, nil
}

// stands tells whether the namespace is still mounted there.
func (m Mount) stands() bool {
	now, err := Mounts(m.PID)
	return err == nil && slices.Contains(now, m)
}

func (m Mount) place(root int) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | resolveCached,
	}
	// A walk through the cache ends early when something is renamed or mounted meanwhile.
	const tries = 16
	for i := 0; ; i++ {
		fd, err := unix.Openat2(root, m.Point, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), m.Path()), nil
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
			return nil, ErrHidden
		case i == tries || !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return nil, err
		}
	}
}

// unescape undoes the kernel's octal escapes of blanks in mount points.
func unescape(s string) string {
	for _, c := range []string{" ", "\t", "\n", "\\"} {
		s = strings.ReplaceAll(s, fmt.Sprintf("\\%03o", c[0]), c)
	}
	return s
}
