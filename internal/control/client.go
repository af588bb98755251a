// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/rules"
)

// Client talks to one daemon over one connection. It is not safe for
// concurrent use.
type Client struct {
	conn *net.UnixConn
	r    *bufio.Reader
	pid  int
	// gone refers to the daemon's process, not to its number: a number may be
	// another process's by the time that the caller waits.
	gone int
}

// Dial connects to the socket of a daemon. The error is ErrNoDaemon when
// no daemon listens there, ErrPermission when the caller may not connect.
func Dial(path string) (*Client, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return nil, ErrNoDaemon
	case errors.Is(err, os.ErrPermission):
		return nil, ErrPermission
	case err != nil:
		return nil, fmt.Errorf("connect to the daemon: %w", err)
	}
	cred, err := peer(conn)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to the daemon: %w", err), conn.Close())
	}
	gone, err := unix.PidfdOpen(int(cred.Pid), 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, errors.Join(ErrNoDaemon, conn.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to the daemon: open its process: %w", err), conn.Close())
	}
	return &Client{conn: conn, r: bufio.NewReader(conn), pid: int(cred.Pid), gone: gone}, nil
}

// PID returns the process number of the daemon.
func (c *Client) PID() int { return c.pid }

// Close ends the connection.
func (c *Client) Close() error {
	return errors.Join(c.conn.Close(), unix.Close(c.gone))
}

// Status asks for the daemon's account of itself.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var st Status
	err := c.call(ctx, verbStatus, nil, &st)
	return st, err
}

// Off makes the daemon restore what was there before and end. It returns when
// that is restored; WaitGone waits for the end.
func (c *Client) Off(ctx context.Context) (OffReport, error) {
	var rep OffReport
	err := c.call(ctx, verbOff, nil, &rep)
	return rep, err
}

// AddRule adds a priority rule at run time.
func (c *Client) AddRule(ctx context.Context, r rules.Rule) error {
	return c.call(ctx, verbAddRule, r, nil)
}

// DelRule takes a rule away that was added at run time.
func (c *Client) DelRule(ctx context.Context, name string) error {
	return c.call(ctx, verbDelRule, name, nil)
}

// Resteer switches continuous re-steering on or off, in a program that was built for tests.
func (c *Client) Resteer(ctx context.Context, on bool) error {
	return c.call(ctx, verbResteer, on, nil)
}

// WaitGone returns nil once the daemon's process has ended.
func (c *Client) WaitGone(ctx context.Context) error {
	const slice = 100 * time.Millisecond // how late the end of ctx may be seen
	for {
		fds := []unix.PollFd{{Fd: int32(c.gone), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(slice/time.Millisecond))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the daemon to end: %w", err)
		case n > 0:
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait for the daemon (pid %d) to end: %w", c.pid, err)
		}
	}
}

func (c *Client) call(ctx context.Context, v verb, args, result any) error {
	data, err := json.Marshal(request[any]{v, args})
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}

	deadline, _ := ctx.Deadline() // the zero time: none
	if err := c.conn.SetDeadline(deadline); err != nil {
		return fmt.Errorf("ask the daemon: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })()

	// The daemon may refuse before it has read the request; its answer tells
	// more than the broken pipe.
	_, werr := c.conn.Write(append(data, '\n'))
	line, err := readLine(c.r, maxResponse)
	if err != nil {
		if cerr := ctx.Err(); cerr != nil {
			return fmt.Errorf("ask the daemon: %w", cerr)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("ask the daemon: %w", context.DeadlineExceeded)
		}
		return fmt.Errorf("ask the daemon: connection ended without an answer: %w", errors.Join(werr, err))
	}
	var resp response
	if err := json.Unmarshal(line, &resp); err != nil {
		return fmt.Errorf("decode the daemon's answer: %w", err)
	}
	switch {
	case resp.Error == ErrPermission.Error():
		return ErrPermission
	case resp.Error != "":
		return &RemoteError{resp.Error}
	case result == nil:
		return nil
	}
	if err := json.Unmarshal(resp.Result, result); err != nil {
		return fmt.Errorf("decode the daemon's answer: %w", err)
	}
	return nil
}
