// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

const (
	journalName = "journal"
	rewriteName = "journal.new"
)

// journal is the write-ahead journal of one namespace. What add could not write
// did not happen. The file may hold more than the state in memory: where it could
// not be rewritten, it has entries that are done with, which restoring tolerates, as
// their settings have their first values.
type journal struct {
	dir  *Dir
	boot string
	f    *os.File
	state
	// behind is why the file could not be rewritten. It is tried again with the next change.
	behind error
	// torn: the file has a tail that could not be cut off, and nothing can be added to it.
	torn bool
}

func openJournal(d *Dir) (*journal, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j := &journal{dir: d, boot: strings.TrimSpace(string(boot))}
	data, err := d.ReadFile(journalName)
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
	lost := j.lost()
	if lost {
		j.behind = fmt.Errorf("the journal in %s was removed", j.dir.path)
	}
	if err := j.sync(); err != nil && (lost || j.torn) {
		return err
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
		f, err := j.dir.open(journalName, os.O_RDWR|os.O_CREATE)
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
			j.torn, j.behind = true, fmt.Errorf("journal in %s has a tail that could not be cut off: %w", j.dir.path, terr)
		}
		return err
	}
	at("journal:after")
	j.size += int64(len(buf))
	return nil
}

// rewrite makes the journal hold exactly the given entries, for settings that have been taken back already: a file
// that cannot be rewritten stays behind.
func (j *journal) rewrite(entries []Entry) {
	j.entries, j.index = nil, nil
	for _, e := range entries {
		j.put(e)
	}
	j.flush()
}

// sync rewrites the file if it is behind, and says why it still is.
func (j *journal) sync() error {
	if j.behind != nil {
		j.flush()
	}
	return j.behind
}

func (j *journal) flush() {
	var err error
	if len(j.entries) > 0 {
		err = j.replace()
	} else {
		err = j.remove()
	}
	if j.behind = nil; err != nil {
		j.behind = fmt.Errorf("rewrite journal in %s: %w", j.dir.path, err)
		return
	}
	at("journal:rewritten")
}

func (j *journal) remove() error {
	if err := j.close(); err != nil {
		return err
	}
	if err := j.dir.root.Remove(journalName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	j.state, j.torn = state{}, false
	return nil
}

func (j *journal) replace() error {
	f, err := j.dir.open(rewriteName, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	n := &journal{dir: j.dir, boot: j.boot, f: f}
	if err = n.add(j.entries); err == nil {
		err = j.dir.root.Rename(rewriteName, journalName)
	}
	if err != nil {
		return errors.Join(err, n.close(), j.dir.root.Remove(rewriteName))
	}
	at("journal:renamed")
	old := j.f
	j.f, j.state, j.torn = n.f, n.state, false
	if old != nil {
		err = old.Close()
	}
	return errors.Join(err, j.dir.syncDir())
}
