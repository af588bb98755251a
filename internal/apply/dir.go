// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"io"
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
		if at, ok := errors.AsType[*fs.PathError](err); ok {
			if to, e := os.Readlink(at.Path); e == nil {
				err = fmt.Errorf("%s is a symlink to %s, where no directory is: make one", at.Path, to)
			}
		}
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
	data, err := d.ReadFile(journalName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	st, err := decode(data, d.cookie)
	return st.entries, err
}

// open opens a file of the folder. What another program has put there in its place is not followed, nor waited for.
func (d *Dir) open(name string, flag int) (*os.File, error) {
	path := filepath.Join(d.path, name)
	switch st, err := d.root.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist), err == nil && st.Mode().IsRegular():
		return d.root.OpenFile(name, flag, 0o600)
	case err != nil:
		return nil, err
	case st.Mode().Type() == fs.ModeSymlink:
		to, err := d.root.Readlink(name)
		return nil, errors.Join(fmt.Errorf("%s is a symlink to %s, and none is followed in a state directory: put the file itself in its place, or give the directory that is meant with --state-dir", path, to), err)
	}
	return nil, fmt.Errorf("%s is in the way and is no regular file: remove it", path)
}

// ReadFile reads a file of the folder.
func (d *Dir) ReadFile(name string) ([]byte, error) {
	f, err := d.open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(f)
	return data, errors.Join(err, f.Close())
}

// WriteFile replaces a file that is not the journal's, or leaves it as it was.
func (d *Dir) WriteFile(name string, data []byte) error {
	fresh := name + ".new"
	f, err := d.open(fresh, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return fmt.Errorf("write %s in %s: %w", name, d.path, err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
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
