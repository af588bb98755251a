// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// OrphanedLinks hold programs that a daemon has left in the kernel.
type OrphanedLinks interface {
	// Drain has flows that they steer return to the stock path, in order, and waits for it.
	Drain(limit time.Duration) error
	// End takes them off, behind what they acted by.
	End(limit time.Duration) error
}

// Adopt makes orphaned links of the descriptors that a guardian holds, which it takes over, or closes.
type Adopt func(held map[string][]int) (OrphanedLinks, error)

const (
	// drainWait is the most that flows get to drain, of the second in which all is restored.
	drainWait = 500 * time.Millisecond
	// passWait is the most that packets get to pass that are under way.
	passWait = 100 * time.Millisecond
)

// What a daemon says to its guardian, one message each: a byte, and the number of what is held.
const (
	// hold comes with a descriptor; its name is behind the number.
	hold = 'h'
	// letGo asks to close it; the guardian says the same when it has.
	letGo = 'l'
)

func holdMessage(what byte, id uint32, name string) []byte {
	return append(binary.NativeEndian.AppendUint32([]byte{what}, id), name...)
}

// heldFDs are the file descriptors that a guardian holds for its daemon, in the order in which they came.
type heldFDs []heldFD

type heldFD struct {
	id   uint32
	name string
	fd   int
}

// listen follows the daemon until it ends, and reports whether it did so in peace.
func (h *heldFDs) listen(conn int) (inPeace bool) {
	msg, rights := make([]byte, 256), make([]byte, unix.CmsgSpace(4))
	for {
		n, nr, _, _, err := unix.Recvmsg(conn, msg, rights, unix.MSG_CMSG_CLOEXEC)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNRESET): // an answer was not read; once
			continue
		case err != nil || n == 0:
			return false
		case msg[0] == released:
			return true
		case n < 5:
			continue
		}
		id, name := binary.NativeEndian.Uint32(msg[1:]), string(msg[5:n])
		switch msg[0] {
		case hold:
			// Without one, for want of room for descriptors, it goes with the daemon.
			if fd, ok := descriptor(rights[:nr]); ok {
				*h = append(*h, heldFD{id, name, fd})
			}
		case letGo:
			h.drop(id)
			_, _ = unix.Write(conn, holdMessage(letGo, id, "")) // the daemon that asked may have died
		}
	}
}

func (h *heldFDs) drop(id uint32) {
	i := slices.IndexFunc(*h, func(x heldFD) bool { return x.id == id })
	if i < 0 {
		return
	}
	_ = unix.Close((*h)[i].fd) // a link: there is nothing to be lost
	*h = slices.Delete(*h, i, i+1)
}

// descriptor is the one that came with a message.
func descriptor(rights []byte) (int, bool) {
	list, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(list) != 1 {
		return 0, false
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil || len(fds) != 1 {
		return 0, false
	}
	return fds[0], true
}

// drain has the flows of the daemon's programs drain. What it returns takes these off, once settings
// are restored, which they are whatever becomes of this; where flows do not drain, that is done already.
func (h heldFDs) drain(adopt Adopt, log *slog.Logger) (end func()) {
	if adopt == nil || len(h) == 0 {
		return func() {}
	}
	held := map[string][]int{}
	for _, x := range h {
		held[x.name] = append(held[x.name], x.fd)
	}
	orphaned, err := adopt(held)
	if err != nil {
		log.Warn("guardian: programs go at once, and some packets may be overtaken once", "reason", err)
		return func() {}
	}
	ends := func(limit time.Duration) {
		if err := orphaned.End(limit); err != nil {
			log.Warn("guardian: some packets may be overtaken once", "reason", err)
		}
	}
	if err := orphaned.Drain(drainWait); err != nil {
		log.Warn("guardian: some packets may be overtaken once", "reason", err)
		ends(0)
		return func() {}
	}
	return func() { ends(passWait) }
}

// Hold has the guardian hold a copy of a descriptor until letGo returns, or until it has restored
// the node after this process. It implements what package datapath asks of a holder.
func (g *Guardian) Hold(name string, fd int) (func() error, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held++
	id := g.held
	if err := g.send(holdMessage(hold, id, name), unix.UnixRights(fd)); err != nil {
		return nil, fmt.Errorf("hand %s to the guardian: %w", name, err)
	}
	return func() error { return g.letGo(id) }, nil
}

// letGo returns when the guardian does not hold it any more. One that has died holds nothing.
func (g *Guardian) letGo(id uint32) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.send(holdMessage(letGo, id, ""), nil)
	for msg := make([]byte, 16); err == nil; {
		var n int
		n, err = g.conn.Read(msg)
		if err == nil && n == 5 && msg[0] == letGo && binary.NativeEndian.Uint32(msg[1:]) == id {
			return nil
		}
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		g.kill()
	case errors.Is(err, io.EOF), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		<-g.done // it has closed its end
	default:
		return fmt.Errorf("have the guardian let go of a program: %w", err)
	}
	return nil
}

// send tells the guardian something.
func (g *Guardian) send(msg, rights []byte) error {
	for {
		err := unix.Sendmsg(int(g.conn.Fd()), msg, rights, nil, unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			g.kill()
		}
		return err
	}
}

// kill ends a guardian that does not answer: one that is dead holds nothing, and its daemon, which
// sees that, restores and ends.
func (g *Guardian) kill() {
	_ = g.cmd.Process.Kill() // it has ended, at worst
	<-g.done
}
