// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/netns"
)

// dialDaemon connects to the daemon of this network namespace.
func dialDaemon() (*control.Client, error) {
	cookie, err := netns.CookieHere()
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
