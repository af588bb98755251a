// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// queueMasks are a NIC's rps_cpus, held open: Poll reads them again and again,
// and a NIC may have as many queues as the machine has cores.
type queueMasks struct {
	dir   *os.Root
	files map[string]*os.File // by queue
}

func (q *queueMasks) close() error {
	errs := []error{q.dir.Close()}
	for _, f := range q.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// keep closes the files of NICs that are no longer asked about.
func (s *side) keep(nics map[int]NIC) {
	for index, q := range s.queues {
		if _, ok := nics[index]; !ok {
			_ = q.close()
			delete(s.queues, index)
		}
	}
}

// masks reads to which cores each queue of a NIC hands its packets.
func (w *Watcher) masks(index int, name string) ([]string, error) {
	q, err := w.queues(index, name)
	if err == nil {
		err = q.list()
	}
	var masks []string
	if err == nil {
		masks, err = read(&w.nics, q.read)
	}
	if err != nil {
		if q != nil {
			_ = q.close() // of a device that is gone, perhaps: the next scan opens anew
			delete(w.side.queues, index)
		}
		return nil, fmt.Errorf("read the RPS masks of %s: %w", name, err)
	}
	return masks, nil
}

// queues opens a NIC's directory in sysfs. It stays that of the NIC, whatever
// happens to its name.
func (w *Watcher) queues(index int, name string) (*queueMasks, error) {
	s := &w.side
	if q := s.queues[index]; q != nil && q.of(index) == nil {
		return q, nil
	}
	if s.sysfs == nil {
		root, err := w.h.Sysfs() // a mount, for which reason it is kept
		if err != nil {
			return nil, err
		}
		s.sysfs, s.queues = root, map[int]*queueMasks{}
	}
	if q := s.queues[index]; q != nil { // of a device that is gone
		_ = q.close()
		delete(s.queues, index)
	}
	dir, err := s.sysfs.OpenRoot("class/net/" + name)
	if err != nil {
		return nil, err
	}
	q := &queueMasks{dir: dir, files: map[string]*os.File{}}
	if err := q.of(index); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	s.queues[index] = q
	return q, nil
}

// of fails if the directory is not that of the device with this index.
func (q *queueMasks) of(index int) error {
	b, err := q.dir.ReadFile("ifindex")
	if err == nil && strings.TrimSpace(string(b)) != strconv.Itoa(index) {
		err = errors.New("another device has got its name")
	}
	return err
}

// list opens the masks of the queues that there are now.
func (q *queueMasks) list() error {
	dir, err := q.dir.Open("queues")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for name, f := range q.files {
		if !slices.Contains(names, name) {
			_ = f.Close()
			delete(q.files, name)
		}
	}
	for _, name := range names {
		if q.files[name] != nil || !strings.HasPrefix(name, "rx-") {
			continue
		}
		f, err := q.dir.Open("queues/" + name + "/rps_cpus")
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without RPS
		}
		if err != nil {
			return err
		}
		q.files[name] = f
	}
	return nil
}

// read reads them from their beginning, for which sysfs asks the kernel anew.
func (q *queueMasks) read() ([]string, error) {
	var list []string
	var buf [4096]byte // a page, the most that sysfs gives
	for _, f := range q.files {
		n, err := unix.Pread(int(f.Fd()), buf[:], 0)
		if err != nil {
			return nil, err
		}
		list = append(list, strings.TrimSpace(string(buf[:n])))
	}
	slices.Sort(list)
	return list, nil
}
