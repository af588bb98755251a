// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/privilege"
)

// Mount is where a process sees a network namespace mounted. That may be any path, with anything over it, in
// a mount namespace that an ordinary user has made.
type Mount struct {
	PID   string // "self", or a number
	Point string // below the root of that process
	Inode uint64 // of the namespace, as the kernel's list of mounts says
}

// Path is the mount's place for people, and for commands.
func (m Mount) Path() string {
	if m.PID == "self" {
		return m.Point
	}
	return "/proc/" + m.PID + "/root" + m.Point
}

// Mounts lists the network namespaces that a process sees mounted, wherever ip-netns(8), container
// engines and others have put them. It opens none of them.
func Mounts(pid string) ([]Mount, error) {
	info, err := os.ReadFile("/proc/" + pid + "/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return parseMounts(pid, string(info)), nil
}

func parseMounts(pid, info string) (list []Mount) {
	for line := range strings.Lines(info) {
		// id parent major:minor root mountpoint options [optional] - type source superoptions
		left, right, ok := strings.Cut(line, " - ")
		fields := strings.Fields(left)
		if !ok || len(fields) < 5 || !strings.HasPrefix(right, "nsfs ") {
			continue
		}
		if inode, ok := ParseLink(fields[3]); ok {
			list = append(list, Mount{pid, unescape.Replace(fields[4]), inode})
		}
	}
	return list
}

// unescape undoes what the kernel does to blanks in its list of mounts.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// ParseLink reads the inode of a network namespace from what the kernel calls it: "net:[4026531840]".
func ParseLink(name string) (inode uint64, ok bool) {
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

// OfMount opens a namespace by its mount. Of what stands in its place nothing is opened, no link is followed, and no
// file system is asked: the directories on the way to a mount point are in the kernel's cache for as long
// as the mount exists, and one that another user serves (FUSE) might never answer.
func OfMount(m Mount) (*Handle, error) {
	h, err := privilege.Read(unix.CAP_SYS_PTRACE, func() (*Handle, error) {
		root, err := unix.Open("/proc/"+m.PID+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		defer unix.Close(root)
		place, err := m.place(root)
		if err != nil {
			return nil, err
		}
		var st unix.Stat_t
		if err := errors.Join(isNamespace(place), unix.Fstat(int(place.Fd()), &st)); err != nil || st.Ino != m.Inode {
			return nil, errors.Join(ErrHidden, place.Close())
		}
		return ofPlace(place)
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
	// A walk through the cache ends early, too, when something is renamed or mounted meanwhile.
	const tries = 16
	for i := 0; ; i++ {
		fd, err := unix.Openat2(root, m.Point, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), m.Path()), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN) && i < tries:
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENOENT):
			return nil, ErrHidden // what is mounted on a path is in the cache
		default:
			return nil, err
		}
	}
}
