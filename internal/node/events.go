// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/nlsock"
)

const (
	settleQuiet = 50 * time.Millisecond  // a burst of changes is over after this
	settleMax   = 500 * time.Millisecond // and told of after this even if not over
)

// watch is a subscription to what changes in one namespace. It keeps the
// namespace alive, for which reason only home and namespaces with tunnels have
// one, and a scan closes it when no other process holds the namespace.
type watch struct {
	f      *os.File
	pid    int // process that holds the namespace, when it has no name
	holder *os.File
}

func (w *watch) close() {
	w.f.Close()
	if w.holder != nil {
		w.holder.Close()
	}
}

// Events tells that a new Scan may see something else than the last one. Many
// changes make one event. It also fires at every Options.Resync, when the
// kernel has lost track of what it should have told, and when the last Scan
// left something open.
func (s *Scanner) Events() <-chan struct{} { return s.events }

func (s *Scanner) poke() {
	select {
	case s.poked <- struct{}{}:
	default:
	}
}

// settle turns bursts of pokes into events.
func (s *Scanner) settle() {
	defer close(s.events)
	resync := time.NewTicker(s.opts.Resync)
	defer resync.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-resync.C:
			s.wantFull.Store(true)
		case <-s.poked:
			latest := time.After(settleMax)
			for quiet := false; !quiet; {
				select {
				case <-s.done:
					return
				case <-s.poked:
				case <-time.After(settleQuiet):
					quiet = true
				case <-latest:
					quiet = true
				}
			}
		}
		select {
		case s.events <- struct{}{}:
		default: // the last one was not taken yet
		}
	}
}

// groups are the rtnetlink groups of what a Snapshot depends on. Neighbours are
// not: they change all the time, and matter only for a tunnel that has neither
// an outer address nor a device; the resync finds those.
var groups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NSID,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP,
}

// watchHere subscribes to the calling thread's namespace.
func (s *Scanner) watchHere(cookie uint64) (*watch, error) {
	f, err := nlsock.Subscribe(unix.NETLINK_ROUTE, s.rcvbuf, groups...)
	if err != nil {
		return nil, fmt.Errorf("watch network namespace %d: %w", cookie, err)
	}
	lost := func() {
		s.wantFull.Store(true)
		s.lostIDs.Store(true)
		s.poke()
	}
	s.wg.Go(func() {
		nlsock.Follow(f, lost, func(told iter.Seq[nlsock.Message]) {
			for m := range told {
				s.handle(cookie, m)
			}
			s.poke()
		})
	})
	return &watch{f: f}, nil
}

// handle notes what a message from a namespace means beyond that something changed.
func (s *Scanner) handle(cookie uint64, m nlsock.Message) {
	switch m.Type {
	case unix.RTM_NEWNSID, unix.RTM_DELNSID:
		s.newIDs.Store(nsKey{cookie, parseNSID(m.Body)}, nil)
	case unix.RTM_DELLINK:
		// A tunnel that moves makes a namespace ours which had no
		// tunnels when it was last scanned; a macvlan, a pod's.
		if l := nlsock.ParseLink(m.Body); l != nil && (linkOf(l).tunnel != nil || stacks(l.Kind)) {
			s.wantFull.Store(true)
		}
	}
}

// watchHolder makes the end of a process an event, when the namespace is
// reached through that process: nothing else would tell.
func (s *Scanner) watchHolder(w *watch, k *known) {
	pid := 0
	if rest, ok := strings.CutPrefix(k.path, proc+"/"); ok && k.mount == (netns.Mount{}) {
		num, _, _ := strings.Cut(rest, "/")
		pid, _ = strconv.Atoi(num) // 0 for "self" and "thread-self"
	}
	if pid == w.pid || pid == os.Getpid() {
		return
	}
	if w.holder != nil {
		w.holder.Close()
		w.holder = nil
	}
	w.pid = pid
	if pid == 0 {
		return
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		s.poke() // ended already
		return
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	w.holder = f
	s.wg.Go(func() {
		c, err := f.SyscallConn()
		if err != nil {
			return
		}
		err = c.Read(func(fd uintptr) bool {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0
		})
		if err == nil {
			s.poke()
		}
	})
}
