// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// files are small files of the kernel's in a namespace, which are held open: Poll reads a dozen
// of them many times a second, and to open one costs more than to read it. The zero value is
// ready.
type files struct{ fds map[string]int }

func (f *files) close() error {
	var errs []error
	for path, fd := range f.fds {
		errs = append(errs, unix.Close(fd))
		delete(f.fds, path)
	}
	return errors.Join(errs...)
}

// isOn reads a setting that is there only if its module is.
func (f *files) isOn(path string) (bool, error) {
	list, err := f.lines(path)
	return len(list) > 0 && list[0] != "0" && list[0] != "N", err
}

// lines reads a file, on a thread in the namespace; one that does not exist has none.
func (f *files) lines(path string) ([]string, error) {
	b, err := f.contents(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []string
	for l := range strings.Lines(string(b)) {
		list = append(list, strings.TrimSpace(l))
	}
	return list, nil
}

func (f *files) contents(path string) ([]byte, error) {
	if fd, held := f.fds[path]; held {
		if b, err := readAll(fd); err == nil {
			return b, nil
		}
		// Its module has gone, and may have come again.
		delete(f.fds, path)
		if err := unix.Close(fd); err != nil {
			return nil, &os.PathError{Op: "close", Path: path, Err: err}
		}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	b, err := readAll(fd)
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "read", Path: path, Err: err}, unix.Close(fd))
	}
	if f.fds == nil {
		f.fds = map[string]int{}
	}
	f.fds[path] = fd
	return b, nil
}

// contents reads a small file of the kernel's once.
func contents(path string) ([]byte, error) {
	var f files
	b, err := f.contents(path)
	return b, errors.Join(err, f.close())
}

// lines is files.lines, once.
func lines(path string) ([]string, error) {
	var f files
	list, err := f.lines(path)
	return list, errors.Join(err, f.close())
}

// readAll reads a file from its beginning. The library would ask what it is, and whether it can be
// waited for.
func readAll(fd int) ([]byte, error) {
	var b []byte
	var buf [512]byte
	for {
		switch n, err := unix.Pread(fd, buf[:], int64(len(b))); {
		case err == unix.EINTR:
		case err != nil:
			return nil, err
		case n == 0:
			return b, nil
		default:
			b = append(b, buf[:n]...)
		}
	}
}
