// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/netns"
)

// here returns the cookie of the network namespace that this process is in.
func here() (uint64, error) {
	h, err := netns.Current()
	if err != nil {
		return 0, err
	}
	cookie, err := h.Cookie()
	return cookie, errors.Join(err, h.Close())
}

// dialDaemon connects to the daemon of this network namespace.
func dialDaemon() (*control.Client, error) {
	cookie, err := here()
	if err != nil {
		return nil, err
	}
	path, err := control.SocketPath(global.stateDir, cookie)
	if err != nil {
		return nil, err
	}
	return control.Dial(path)
}

// withDaemon runs fn with a connection, or says how to get a daemon.
func withDaemon(verb string, fn func(*control.Client) error) error {
	if err := needRoot(verb); err != nil {
		return err
	}
	c, err := dialDaemon()
	if errors.Is(err, control.ErrNoDaemon) {
		return fmt.Errorf("%w (state directory %s): start one with systemctl start overlane, or overlane run", err, global.stateDir)
	}
	if err != nil {
		return err
	}
	return errors.Join(fn(c), c.Close())
}
