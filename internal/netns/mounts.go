// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/privilege"
)

// Mount is where a process sees a network namespace mounted.
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

// OfMount opens a namespace by its mount. Mounts of other mount namespaces, and what lies below and over
// them, may be an unprivileged user's: no link is followed on the way, and nothing is opened that is not
// the namespace that the list of mounts has named.
func OfMount(m Mount) (*Handle, error) {
	var fd int
	err := privilege.With(unix.CAP_SYS_PTRACE, func() error {
		root, err := unix.Open("/proc/"+m.PID+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(root)
		fd, err = unix.Openat2(root, m.Point, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up %q: %w", m.Path(), err)
	}
	h, err := reopen(fd, m.Path())
	if err == nil && h.inode != m.Inode {
		err = errors.Join(fmt.Errorf("%q is another namespace by now", m.Path()), h.Close())
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

// reopen opens what a descriptor of O_PATH, which it closes, refers to, if that is a namespace.
func reopen(fd int, path string) (*Handle, error) {
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, fmt.Errorf("look at %q: %w", path, err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return nil, fmt.Errorf("%q is not a namespace", path)
	}
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return ofFile(f)
}
