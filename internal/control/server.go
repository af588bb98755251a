// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/rules"
)

// Handler does what the requests ask. Methods may be called concurrently.
type Handler interface {
	// Status returns the present state; the server does not change it.
	Status() Status
	// Off restores what was there before, and makes the daemon end with exit
	// code 0 after it has returned, with an error as well. It returns after
	// restoring.
	Off(context.Context) (OffReport, error)
	// AddRule puts a priority rule behind those that were added before, and before
	// those of the configuration; DelRule takes one that was added away. They last
	// until the daemon ends, and are in force when the method returns. An error
	// changes nothing.
	AddRule(context.Context, rules.Rule) error
	DelRule(ctx context.Context, name string) error
}

// resteerer is a Handler of a program that was built for tests of the order guard (build tag resteer).
type resteerer interface {
	// Resteer makes flows choose their lanes anew as long as on is true, as if
	// the load had changed all the time.
	Resteer(ctx context.Context, on bool) error
}

// Server listens for requests.
type Server struct {
	l  *net.UnixListener
	h  Handler
	wg sync.WaitGroup

	mu sync.Mutex
	// conns tells since when each connection waits for its client: for a request, or to have an answer read. The zero
	// time: the client waits.
	conns map[*net.UnixConn]time.Time
}

// Listen creates the socket at path, and its folder. The caller holds the lock
// of the namespace: a socket that is already there is a dead daemon's and is
// replaced.
func Listen(path string, h Handler) (*Server, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("create control socket: %w", err)
	}
	if fi, err := os.Lstat(path); err == nil {
		if fi.Mode().Type() != fs.ModeSocket {
			return nil, fmt.Errorf("create control socket: %s is in the way and is no socket: remove it", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("create control socket: %w", err)
		}
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// The mode of an unbound socket becomes the mode of the file, so that
		// there is no moment at which others could open it.
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("create control socket: %w", err)
	}
	return &Server{l: l.(*net.UnixListener), h: h, conns: map[*net.UnixConn]time.Time{}}, nil
}

// Serve answers requests until ctx ends. Then it removes the socket, lets
// requests that are being answered finish, and returns nil.
func (s *Server) Serve(ctx context.Context) error {
	defer s.wg.Wait()
	defer context.AfterFunc(ctx, func() { s.l.Close() })()

	for {
		conn, err := s.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			// Out of descriptors, for one: nothing that ends the daemon.
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		if !s.admit(conn) {
			conn.Close()
			continue
		}
		s.wg.Go(func() {
			s.serve(ctx, conn)
			s.end(conn)
		})
	}
}

// admit takes a connection in. Where there are as many as there may be, the one goes that has waited longest for its
// client: no client keeps others out by doing nothing. It is false where all are being answered.
func (s *Server) admit(conn *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= maxConns {
		var idlest *net.UnixConn
		for c, since := range s.conns {
			if !since.IsZero() && (idlest == nil || since.Before(s.conns[idlest])) {
				idlest = c
			}
		}
		if idlest == nil {
			return false
		}
		delete(s.conns, idlest)
		idlest.Close()
	}
	s.conns[conn] = time.Now()
	return true
}

// begins notes that a request is being answered; false: the connection had to go, and the request is not begun.
func (s *Server) begins(conn *net.UnixConn) bool { return s.waits(conn, time.Time{}) }

func (s *Server) waits(conn *net.UnixConn, since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.conns[conn]; !there {
		return false
	}
	s.conns[conn] = since
	return true
}

func (s *Server) end(conn *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
	conn.Close()
}

func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	cred, err := peer(conn)
	if err != nil || cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		_ = reply(ctx, conn, response{Error: ErrPermission.Error()})
		return
	}
	r := bufio.NewReaderSize(conn, 4<<10)
	for ctx.Err() == nil {
		if conn.SetReadDeadline(time.Now().Add(idleTimeout)) != nil {
			return
		}
		// Between two requests a connection ends with ctx.
		stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
		line, err := readLine(r, maxRequest)
		stop()
		if errors.Is(err, errTooLong) {
			_ = reply(ctx, conn, response{Error: "request too long"})
			return
		}
		if err != nil || !s.begins(conn) {
			return
		}
		// A request that was begun is finished, also when the daemon is stopping because of it.
		answer := s.answer(context.WithoutCancel(ctx), line)
		if !s.waits(conn, time.Now()) || reply(ctx, conn, answer) != nil {
			return
		}
	}
}

func (s *Server) answer(ctx context.Context, line []byte) response {
	var req request[json.RawMessage]
	if err := strict(line, &req); err != nil {
		return response{Error: "bad request: " + err.Error()}
	}
	result, err := s.call(ctx, req)
	if err != nil {
		return response{Error: err.Error()}
	}
	data, err := json.Marshal(result)
	if err != nil {
		return response{Error: "encode response: " + err.Error()}
	}
	return response{Result: data}
}

func (s *Server) call(ctx context.Context, req request[json.RawMessage]) (any, error) {
	switch req.Verb {
	case verbStatus:
		return s.h.Status().withoutNil(), nil
	case verbOff:
		rep, err := s.h.Off(ctx)
		return rep.withoutNil(), err
	case verbResteer:
		h, ok := s.h.(resteerer)
		if !ok {
			return nil, errors.New("resteer: this program was not built with the tag resteer")
		}
		var on bool
		if err := strict(req.Args, &on); err != nil {
			return nil, fmt.Errorf("resteer: %w", err)
		}
		return nil, h.Resteer(ctx, on)
	case verbAddRule:
		var r rules.Rule
		if err := strict(req.Args, &r); err != nil {
			return nil, fmt.Errorf("add rule: %w", err)
		}
		if err := r.Finish(); err != nil {
			return nil, fmt.Errorf("add rule: %w", err)
		}
		return nil, s.h.AddRule(ctx, r)
	case verbDelRule:
		var name string
		if err := strict(req.Args, &name); err != nil {
			return nil, fmt.Errorf("delete rule: %w", err)
		}
		return nil, s.h.DelRule(ctx, name)
	}
	return nil, fmt.Errorf("unknown request %q: the daemon may be of another version", req.Verb)
}

// strict decodes exactly one JSON value without unknown fields: a request that
// is not wholly understood must not be half done.
func strict(data []byte, dst any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(dst); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("more than one value")
	}
	return nil
}

// reply writes an answer. A client that does not read it keeps no daemon from ending.
func reply(ctx context.Context, conn net.Conn, r response) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(idleTimeout)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetWriteDeadline(time.Now().Add(lastWrite)) })()
	_, err = conn.Write(append(data, '\n'))
	return err
}

// peer returns the process that opened the other end of the connection.
func peer(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var serr error
	err = raw.Control(func(fd uintptr) { cred, serr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(err, serr)
}
