// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// sysfsFiles are the settings of a device that stand in sysfs alone.
var sysfsFiles = []string{
	"threaded", "gro_flush_timeout", "napi_defer_hard_irqs",
	"queues/rx-*/rps_cpus", "queues/rx-*/rps_flow_cnt",
	"queues/tx-*/xps_cpus", "queues/tx-*/xps_rxqs", "queues/tx-*/tx_maxrate",
}

// readSysfs runs on a thread in the namespace: a fresh sysfs shows the devices
// of the namespace that its mounter is in.
func readSysfs(s *Snapshot, ns uint64, rule counts, devices []device) error {
	root, err := mountSysfs()
	if err != nil {
		return fmt.Errorf("mount sysfs: %w", err)
	}
	defer root.Close()
	flag, err := superblock()
	if err != nil {
		return fmt.Errorf("look at the superblock of sysfs: %w", err)
	}
	s.add(key{ns, "", "sysfs superblock"}, rule&changes, "%s", flag)
	tree := root.FS()
	for _, d := range devices {
		// class/net/X is a symbolic link that leads out of itself; os.Root
		// follows it because it stays under the mount.
		base := "class/net/" + d.name
		for _, pattern := range sysfsFiles {
			for _, file := range expand(tree, base, pattern) {
				value, err := fs.ReadFile(tree, path.Join(base, file))
				if err != nil {
					continue // this device has no such setting
				}
				s.add(key{ns, d.name, file}, rule, "%s", strings.TrimSpace(string(value)))
			}
		}
	}
	return nil
}

// expand resolves the one * of a pattern such as queues/rx-*/rps_cpus.
func expand(tree fs.FS, base, pattern string) []string {
	dir, file := path.Split(pattern)
	if !strings.Contains(dir, "*") {
		return []string{pattern}
	}
	parent, match := path.Split(path.Clean(dir))
	entries, _ := fs.ReadDir(tree, path.Join(base, parent))
	var files []string
	for _, e := range entries {
		if ok, _ := path.Match(match, e.Name()); ok {
			files = append(files, path.Join(parent, e.Name(), file))
		}
	}
	return files
}

func mountSysfs() (*os.Root, error) {
	fsfd, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return nil, err
	}
	mfd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(mfd)
	return os.OpenRoot("/proc/thread-self/fd/" + strconv.Itoa(mfd))
}

// superblock tells whether the sysfs of the calling thread's network namespace can be written by any mount.
func superblock() (string, error) {
	fsfd, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return "", err
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return "", err
	}
	mfd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(mfd)
	var st unix.Statfs_t
	if err := unix.Fstatfs(mfd, &st); err != nil {
		return "", err
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return "read-only", nil
	}
	return "writable", nil
}

// moving are sysctls that change by themselves, or do something when read.
var moving = map[string]bool{
	"nf_conntrack_count": true,
	"flush":              true,
	"tcp_fastopen_key":   true, // made up on first use
}

// readSysctls reads net.* whole; /proc/sys/net shows each thread the values of
// its own namespace. Modules add files when they load, so only changes count.
func readSysctls(s *Snapshot, ns uint64, _ counts, devices []device) error {
	isDevice := map[string]bool{}
	for _, d := range devices {
		isDevice[d.name] = true
	}
	const root = "/proc/sys/net"
	return fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || moving[d.Name()] {
			return nil // a device's folder may have gone
		}
		value, err := readValue(path.Join(root, name))
		if err != nil {
			return nil // write-only, or without a value
		}
		k := key{ns: ns, what: "sysctl net." + strings.ReplaceAll(name, "/", ".")}
		if owner := path.Base(path.Dir(name)); isDevice[owner] {
			k.dev = owner // conf/X/..., neigh/X/...
		}
		s.add(k, changes, "%s", strings.Join(strings.Fields(string(value)), " "))
		return nil
	})
}

// readValue reads a file of less than a page. There are thousands: os.ReadFile, which has each polled, takes three times
// as long.
func readValue(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	return buf[:max(n, 0)], err
}
