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

	"github.com/overlane/overlane/internal/netns"
)

// queueMasks are a NIC's rps_cpus, held open: Poll reads them again and again,
// and a NIC may have as many queues as the machine has cores.
type queueMasks struct {
	queues []string
	files  []*os.File
}

func (q *queueMasks) close() error {
	var errs []error
	for _, f := range q.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// keep closes the files of NICs that are no longer asked about.
func (s *side) keep(nics map[int]NIC) {
	for index := range s.queues {
		if _, ok := nics[index]; !ok {
			s.drop(index)
		}
	}
}

// drop closes the files of a NIC that is gone, or has other queues: the next scan opens them anew.
func (s *side) drop(index int) {
	if q := s.queues[index]; q != nil {
		_ = q.close()
		delete(s.queues, index)
	}
}

// masks reads to which cores each queue of a NIC hands its packets.
func (w *Watcher) masks(index int, name string) (masks []string, err error) {
	q, err := w.queues(index, name)
	if err == nil {
		masks, err = read(&w.nics, q.read)
	}
	if err != nil {
		w.side.drop(index)
		return nil, fmt.Errorf("read the RPS masks of %s: %w", name, err)
	}
	return masks, nil
}

// queues opens the masks of the queues that a NIC has now, unless they are open.
func (w *Watcher) queues(index int, name string) (*queueMasks, error) {
	s := &w.side
	if s.sysfs == nil {
		root, err := w.h.Sysfs() // a mount, for which reason it is kept
		if err != nil {
			return nil, err
		}
		s.sysfs, s.queues = root, map[int]*queueMasks{}
	}
	dir, err := s.sysfs.OpenRoot("class/net/" + name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	is, err := netns.ReadAttr(dir, "ifindex")
	if err != nil {
		return nil, err
	}
	if is != strconv.Itoa(index) {
		return nil, errors.New("another device has got its name")
	}
	all, err := fs.ReadDir(dir.FS(), "queues")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range all {
		if strings.HasPrefix(e.Name(), "rx-") {
			names = append(names, e.Name())
		}
	}
	if q := s.queues[index]; q != nil && slices.Equal(q.queues, names) {
		return q, nil
	}
	s.drop(index)
	q := &queueMasks{queues: names}
	s.queues[index] = q
	for _, name := range names {
		f, err := dir.Open("queues/" + name + "/rps_cpus")
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without RPS
		}
		if err != nil {
			return nil, err
		}
		q.files = append(q.files, f)
	}
	return q, nil
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
	return list, nil
}
