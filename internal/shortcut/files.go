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
func (f *files) lines(path string) ([]string, error) { return f.first(path, most) }

// first is lines, of a file that may be long: with errLong it returns the first lines, of at most so many bytes.
func (f *files) first(path string, most int) ([]string, error) {
	b, err := f.contents(path, most)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil && !errors.Is(err, errLong) {
		return nil, err
	}
	var list []string
	for l := range strings.Lines(string(b)) {
		list = append(list, strings.TrimSpace(l))
	}
	return list, err
}

func (f *files) contents(path string, most int) ([]byte, error) {
	if fd, held := f.fds[path]; held {
		if b, err := readAll(fd, most); err == nil || errors.Is(err, errLong) {
			return b, err
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
	b, err := readAll(fd, most)
	if err != nil && !errors.Is(err, errLong) {
		return nil, errors.Join(&os.PathError{Op: "read", Path: path, Err: err}, unix.Close(fd))
	}
	if f.fds == nil {
		f.fds = map[string]int{}
	}
	f.fds[path] = fd
	return b, err
}

// lines is files.lines, once.
func lines(path string) ([]string, error) { return first(path, most) }

// first is files.first, once.
func first(path string, most int) ([]string, error) {
	var f files
	list, err := f.first(path, most)
	return list, errors.Join(err, f.close())
}

// most is how much of a file is read: a pod may make some of its files as long as it likes, and the kernel walks
// through what these list from its head for each page that is read.
const most = 64 << 10

// errLong says that there is more in a file than is read.
var errLong = errors.New("it is too long")

// readAll reads a file from its beginning; with errLong it returns what it has read. The library would ask what it
// is, and whether it can be waited for.
func readAll(fd, most int) ([]byte, error) {
	var b []byte
	var buf [4096]byte // a page, the most that the kernel gives at a time
	for {
		switch n, err := unix.Pread(fd, buf[:], int64(len(b))); {
		case err == unix.EINTR:
		case err != nil:
			return nil, err
		case n == 0:
			return b, nil
		default:
			if b = append(b, buf[:n]...); len(b) > most {
				return b, errLong
			}
		}
	}
}
