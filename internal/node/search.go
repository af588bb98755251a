// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/privilege"
)

// search is for namespaces that only a descriptor of some process leads to. There may be a million descriptors on a
// machine, so that a scan reads some of them, and the next one goes on from there.
type search struct {
	laps int           // how often all descriptors were read
	ends map[nsKey]int // the number of laps after which the search for an id was in vain, or wasFound
	pids []string      // processes that are still to come in this lap
	dir  *os.File      // descriptors of the process at hand, nil: none
	most time.Duration // that a scan may take for it
}

// wasFound is what ends has for an id whose namespace was found.
const wasFound = 0

// end is after how many laps all descriptors were read from now on.
func (s *search) end() int {
	if s.dir != nil || len(s.pids) > 0 {
		return s.laps + 2
	}
	return s.laps + 1
}

// some reads some hundred descriptors more.
func (s *search) some(each func(path string)) {
	if s.dir == nil {
		if len(s.pids) == 0 {
			s.pids = netns.PIDs()
		}
		if len(s.pids) > 0 {
			if s.pids[0] != strconv.Itoa(os.Getpid()) { // we would never let go of a namespace
				s.dir, _ = os.Open(proc + "/" + s.pids[0] + "/fd") // fails if it has ended
			}
			s.pids = s.pids[1:]
		}
	}
	names, _ := s.dir.Readdirnames(256)
	for _, name := range names {
		each(s.dir.Name() + "/" + name)
	}
	if len(names) > 0 {
		return
	}
	s.close()
	if len(s.pids) == 0 {
		s.laps++
	}
}

func (s *search) close() {
	s.dir.Close()
	s.dir = nil
}

// descriptors adds namespaces that processes hold open: in the first scan all of them, in later ones as many as there
// is time for.
func (p *pass) descriptors() {
	p.walked = walkedFDs
	s := &p.s.search
	began, lap, first := time.Now(), s.laps, len(p.s.known) == 0
	_ = privilege.With(unix.CAP_SYS_PTRACE, func() error { // once, and not for each
		for more := true; more && s.laps == lap; more = first || time.Since(began) < s.most {
			s.some(p.magic)
		}
		return nil
	})
}

// lacks reports whether it is still to be searched for the namespace that an id means. One that was found once, and is
// not now, most likely ends: the search for it is up to the next full scan.
func (p *pass) lacks(sp *space, id int) bool {
	key, s := nsKey{sp.cookie, id}, &p.s.search
	if sp.ids[id] != nil {
		s.ends[key] = wasFound
		return false
	}
	end, known := s.ends[key]
	if !known || end == wasFound && p.full {
		end = s.end()
		s.ends[key] = end
	}
	return s.laps < end
}
