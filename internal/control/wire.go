// SPDX-License-Identifier: Apache-2.0

// Package control is the line between the daemon and the other verbs: a unix
// socket that only root may use, with one JSON object per line each way.
//
// A request is {"verb":"status"} with an optional "args"; a response has either
// "result" or "error". A connection carries any number of requests, one after
// another.
package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"
)

const (
	socketName = "control.sock"

	// maxSocketPath is the room for a path in sockaddr_un, less its final zero.
	maxSocketPath = 107

	maxRequest  = 64 << 10
	maxResponse = 16 << 20

	// idleTimeout ends a connection on which no request comes.
	idleTimeout = 10 * time.Second

	// lastWrite is how long a daemon that ends waits for a client to read its answer.
	lastWrite = time.Second

	// maxConns bounds the memory that clients can hold; all are root's.
	maxConns = 16
)

type verb string

const (
	verbStatus  verb = "status"
	verbOff     verb = "off"
	verbResteer verb = "resteer"
	verbAddRule verb = "add-rule"
	verbDelRule verb = "del-rule"
)

type request[Args any] struct {
	Verb verb `json:"verb"`
	Args Args `json:"args,omitempty"`
}

type response struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// ErrNoDaemon says that no daemon listens for this namespace and state
// directory.
var ErrNoDaemon = errors.New("no overlane daemon is running in this network namespace")

// ErrPermission says that the caller may not use the socket.
var ErrPermission = errors.New("only root may talk to the daemon")

// RemoteError is an error that the daemon answered with. The request did
// nothing, unless it was off.
type RemoteError struct{ Message string }

func (e *RemoteError) Error() string { return e.Message }

// SocketPath is where the daemon of the network namespace with this cookie
// listens. It fails when the path is longer than the address of a unix socket
// can hold.
func SocketPath(stateDir string, cookie uint64) (string, error) {
	p := filepath.Join(stateDir, strconv.FormatUint(cookie, 10), socketName)
	if len(p) > maxSocketPath {
		return "", fmt.Errorf("control socket %s: path has %d bytes and may have %d: choose a shorter --state-dir", p, len(p), maxSocketPath)
	}
	return p, nil
}

var errTooLong = errors.New("line too long")

// readLine reads one line of at most limit bytes.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > limit {
			return nil, errTooLong
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}
