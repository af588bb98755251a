// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
)

const (
	journalName = "journal"
	rewriteName = "journal.new"
)

// journal is the write-ahead journal of one namespace. Its state in memory
// is never behind the file: what add or rewrite could not write did not
// happen.
type journal struct {
	dir  *Dir
	boot string
	f    *os.File
	state
	// broken is set when the file has a tail that could not be cut off.
	broken error
}

func openJournal(d *Dir) (*journal, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j := &journal{dir: d, boot: strings.TrimSpace(string(boot))}
	data, err := d.root.ReadFile(journalName)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	if j.state, err = decode(data, d.cookie); err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	if j.head != nil && j.head.Boot != j.boot {
		// The reboot has undone everything, and cookies start anew.
		j.state = state{}
		if err := d.root.Remove(journalName); err != nil {
			return nil, fmt.Errorf("drop journal of an earlier boot: %w", err)
		}
	}
	return j, nil
}

func (j *journal) close() error {
	if j.f == nil {
		return nil
	}
	err := j.f.Close()
	j.f = nil
	return err
}

// add makes the entries last before it returns. On an error the journal is
// as it was.
func (j *journal) add(entries []Entry) error {
	if j.broken != nil {
		return j.broken
	}
	if j.lost() {
		entries = append(slices.Clone(j.entries), entries...)
		if err := j.close(); err != nil {
			return fmt.Errorf("write journal: %w", err)
		}
		j.size = 0
	}
	var buf []byte
	records := make([]record, 0, len(entries)+1)
	if j.size == 0 {
		records = append(records, record{Header: &header{Version: journalVersion, Netns: j.dir.cookie, Boot: j.boot}})
	}
	for i := range entries {
		records = append(records, record{Entry: &entries[i]})
	}
	for _, r := range records {
		line, err := encode(r)
		if err != nil {
			return fmt.Errorf("write journal: %w", err)
		}
		buf = append(buf, line...)
	}
	if err := j.append(buf); err != nil {
		return fmt.Errorf("write journal in %s: %w", j.dir.path, err)
	}
	for _, e := range entries {
		j.put(e)
	}
	return nil
}

// lost reports whether another program has removed the file under us.
func (j *journal) lost() bool {
	if j.f == nil {
		return false
	}
	st, err := j.f.Stat()
	if err != nil {
		return true
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && sys.Nlink == 0
}

func (j *journal) append(buf []byte) error {
	isNew := j.f == nil
	if isNew {
		f, err := j.dir.root.OpenFile(journalName, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		j.f = f
	}
	at("journal:before")
	// At the size, not at the end: what a torn record left there has no line
	// end, so that the rest of it, if any, is still a torn record.
	_, err := j.f.WriteAt(buf, j.size)
	if err == nil {
		err = j.f.Sync()
	}
	if err == nil && isNew {
		err = j.dir.syncDir()
	}
	if err != nil {
		if terr := j.f.Truncate(j.size); terr != nil {
			j.broken = fmt.Errorf("journal in %s has a tail that could not be cut off: %w", j.dir.path, terr)
		}
		return err
	}
	at("journal:after")
	j.size += int64(len(buf))
	return nil
}

// rewrite makes the journal hold exactly the given entries. On an error the
// file holds more than that, which restoring tolerates.
func (j *journal) rewrite(entries []Entry) error {
	var err error
	if len(entries) == 0 {
		if err = j.close(); err == nil {
			err = j.dir.root.Remove(journalName)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		if err == nil {
			j.state, j.broken = state{}, nil
		}
	} else {
		err = j.replace(slices.Clone(entries))
	}
	if err != nil {
		return fmt.Errorf("rewrite journal in %s: %w", j.dir.path, err)
	}
	at("journal:rewritten")
	return nil
}

func (j *journal) replace(entries []Entry) error {
	f, err := j.dir.root.OpenFile(rewriteName, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	n := &journal{dir: j.dir, boot: j.boot, f: f}
	if err = n.add(entries); err == nil {
		err = j.dir.root.Rename(rewriteName, journalName)
	}
	if err != nil {
		return errors.Join(err, n.close(), j.dir.root.Remove(rewriteName))
	}
	at("journal:renamed")
	old := j.f
	j.f, j.state, j.broken = n.f, n.state, nil
	if old != nil {
		err = old.Close()
	}
	return errors.Join(err, j.dir.syncDir())
}
