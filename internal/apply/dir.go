// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// DefaultStateDir is where the lock, the journal and the socket lie. It has
// to be a file system that a reboot empties, or one that survives it: the
// journal knows the boot it was written in.
const DefaultStateDir = "/run/overlane"

// Dir is the folder of one network namespace below the state directory.
type Dir struct {
	path   string
	cookie uint64
	root   *os.Root
}

// Open opens, and creates where it is missing, the folder of the namespace
// with the given cookie. It refuses a folder that others may write to: what
// lies in it decides what is written to the kernel.
func Open(stateDir string, cookie uint64) (*Dir, error) {
	abs, err := filepath.Abs(stateDir)
	if err != nil {
		return nil, fmt.Errorf("open state directory: %w", err)
	}
	path := filepath.Join(abs, strconv.FormatUint(cookie, 10))
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("create state directory: %w (choose another with --state-dir)", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open state directory: %w", err)
	}
	if err := private(root); err != nil {
		return nil, errors.Join(fmt.Errorf("state directory %s: %w", path, err), root.Close())
	}
	return &Dir{path: path, cookie: cookie, root: root}, nil
}

func private(root *os.Root) error {
	st, err := root.Stat(".")
	if err != nil {
		return err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("owned by user %d: remove it or choose another with --state-dir", sys.Uid)
	}
	if st.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("mode %04o lets others write: chmod 0700 it", st.Mode().Perm())
	}
	return nil
}

// Close lets go of the folder. It does not release a lock taken through it.
func (d *Dir) Close() error { return d.root.Close() }

// Entries reads, without the lock, what the journal says is changed now. It
// may lag behind a living owner.
func (d *Dir) Entries() ([]Entry, error) {
	data, err := d.root.ReadFile(journalName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	st, err := decode(data, d.cookie)
	return st.entries, err
}

// ReadFile reads a file of the folder that is not the journal's.
func (d *Dir) ReadFile(name string) ([]byte, error) { return d.root.ReadFile(name) }

// WriteFile replaces such a file, or leaves it as it was.
func (d *Dir) WriteFile(name string, data []byte) error {
	fresh := name + ".new"
	err := d.root.WriteFile(fresh, data, 0o600)
	if err == nil {
		err = d.root.Rename(fresh, name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s in %s: %w", name, d.path, err), d.root.Remove(fresh))
	}
	return nil
}

// syncDir makes a rename or a new file in the folder last.
func (d *Dir) syncDir() error {
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(unix.Fsync(int(f.Fd())), f.Close())
}
