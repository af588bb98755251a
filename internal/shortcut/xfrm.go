// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
)

// Not in golang.org/x/sys.
const (
	xfrmMsgGetSADInfo = 0x23
	xfrmMsgGetSPDInfo = 0x25
	xfrmMsgGetDefault = 0x28
	xfrmaSADCount     = 1
	xfrmaSPDInfo      = 1
	xfrmGroupPolicy   = 4
	xfrmBlock         = 1 // XFRM_USERPOLICY_BLOCK
)

// policies counts the policies of IPsec and tells whether packets without one are
// dropped.
func (w *Watcher) policies() (n int, blocks bool, err error) {
	there, err := module(&w.nics, "xfrm_user")
	if err != nil {
		return 0, false, err
	}
	if !there { // to open a socket would load it
		keys, err := module(&w.nics, "af_key")
		if err == nil && keys {
			err = errors.New("IPsec can have policies (af_key) that nothing lists (xfrm_user is not loaded); where it is not used: modprobe -r af_key")
		}
		return 0, false, err
	}
	err = w.dial(&w.side.xfrm, unix.NETLINK_XFRM, xfrmGroupPolicy)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	b, err := w.side.xfrm.Ask(xfrmMsgGetSPDInfo, make([]byte, 4))
	if n = parsePolicies(b); err == nil && n < 0 {
		err = errors.New("no answer")
	}
	if err != nil {
		return 0, false, fmt.Errorf("count IPsec policies: %w", err)
	}
	b, err = w.side.xfrm.Ask(xfrmMsgGetDefault, make([]byte, 4))
	if err != nil && !errors.Is(err, unix.EINVAL) { // Linux 5.15
		return 0, false, fmt.Errorf("ask for IPsec's default policy: %w", err)
	}
	return n, len(b) > 0 && b[0] == xfrmBlock, nil // in, forward, out
}

// parsePolicies returns -1 for no answer. Those of single sockets are not counted:
// a tunnel's has none.
func parsePolicies(b []byte) int {
	const flags, in, out, forward = 4, 0, 4, 8 // struct xfrmu_spdinfo
	v := nlsock.ListOf(b, flags).Get(xfrmaSPDInfo)
	if len(v) < 12 {
		return -1
	}
	return int(nlsock.U32(v[in:])) + int(nlsock.U32(v[out:])) + int(nlsock.U32(v[forward:]))
}

// MayDecrypt tells whether IPsec may decrypt what comes to the calling thread's namespace: it has states there, or they
// cannot be counted.
func MayDecrypt() bool {
	there, err := module(&readings{}, "xfrm_user")
	if err == nil && !there { // to open a socket would load it
		keys, err := module(&readings{}, "af_key")
		return keys || err != nil
	}
	if err != nil {
		return true
	}
	c, err := nlsock.Dial(unix.NETLINK_XFRM, make([]byte, 1<<12))
	if err != nil {
		return !errors.Is(err, unix.EPROTONOSUPPORT)
	}
	defer c.Close()
	b, err := c.Ask(xfrmMsgGetSADInfo, make([]byte, 4))
	return err != nil || nlsock.ListOf(b, 4).U32(xfrmaSADCount) > 0
}
