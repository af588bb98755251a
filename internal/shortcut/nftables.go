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
	nftaHookDevs = 4

	nftaFlowtableTable    = 1
	nftaFlowtableName     = 2
	nftaFlowtableHook     = 3
	nftaFlowtableHookDevs = 3

	nftaDeviceName   = 1
	nftaDevicePrefix = 2

	nfInetIngress = 5
	sizeofGenmsg  = 4
)

// nftables remembers the chains of a namespace until its generation changes:
// kube-proxy has thousands.
type nftables struct {
	c      *nlsock.Conn
	gen    uint32
	chains []Chain
}

func (n *nftables) close() error {
	if n.c == nil {
		return nil
	}
	return n.c.Close()
}

// nftables returns what is known of it, and makes its changes events; nil: the kernel has none.
func (w *Watcher) nftables(rs *readings) (*nftables, error) {
	// To ask, or to subscribe, would load it.
	if there, err := module(rs, "nf_tables"); !there || err != nil {
		return nil, err
	}
	if err := w.dial(&w.nft.c, unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES); err != nil {
		return nil, err
	}
	return &w.nft, nil
}

// chains lists base chains and flow tables.
func (w *Watcher) chains(rs *readings) ([]Chain, error) {
	n, err := w.nftables(rs)
	if n == nil || err != nil {
		return nil, err
	}
	gen, err := n.generation()
	if err != nil {
		return nil, err
	}
	if gen != n.gen {
		if n.chains, err = n.list(); err != nil {
			return nil, err
		}
		n.gen = gen
	}
	return n.chains, nil
}

func nft(msg uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | msg }

func (n *nftables) generation() (uint32, error) {
	b, err := n.c.Ask(nft(unix.NFT_MSG_GETGEN), make([]byte, sizeofGenmsg))
	gen := nlsock.ListOf(b, sizeofGenmsg).U32BE(unix.NFTA_GEN_ID)
	if err == nil && gen == 0 {
		err = errors.New("no answer") // it begins with 1
	}
	if err != nil {
		return 0, fmt.Errorf("ask nftables for its generation: %w", err)
	}
	return gen, nil
}

func (n *nftables) list() ([]Chain, error) {
	chains, err := nlsock.Collect(n.c, nft(unix.NFT_MSG_GETCHAIN), make([]byte, sizeofGenmsg), parseChain)
	if err == nil {
		var flows []Chain
		flows, err = nlsock.Collect(n.c, nft(unix.NFT_MSG_GETFLOWTABLE), make([]byte, sizeofGenmsg), parseFlowtable)
		chains = append(chains, flows...)
	}
	if err != nil {
		return nil, fmt.Errorf("list the chains of nftables: %w", err)
	}
	return chains, nil
}

// parseChain returns false for a chain that only other chains jump to.
func parseChain(b []byte) (Chain, bool) {
	if len(b) < sizeofGenmsg {
		return Chain{}, false
	}
	a := nlsock.ListOf(b, sizeofGenmsg)
	hook := a.Nested(unix.NFTA_CHAIN_HOOK)
	c := Chain{
		Family: b[0], Table: a.Str(unix.NFTA_CHAIN_TABLE), Name: a.Str(unix.NFTA_CHAIN_NAME), Hook: int(hook.U32BE(unix.NFTA_HOOK_HOOKNUM)),
		Nat: a.Str(unix.NFTA_CHAIN_TYPE) == "nat",
	}
	bound := c.Family == unix.NFPROTO_NETDEV || c.Family == unix.NFPROTO_INET && c.Hook == nfInetIngress
	if devs, told := hook.Find(nftaHookDevs); told {
		c.Devices = parseDevices(devs)
	} else if bound {
		c.Devices = anyDevice
	}
	return c, a.Has(unix.NFTA_CHAIN_HOOK)
}

func parseFlowtable(b []byte) (Chain, bool) {
	if len(b) < sizeofGenmsg {
		return Chain{}, false
	}
	a := nlsock.ListOf(b, sizeofGenmsg)
	c := Chain{Family: b[0], Table: a.Str(nftaFlowtableTable), Name: a.Str(nftaFlowtableName), Hook: -1, Devices: anyDevice}
	if devs, told := a.Nested(nftaFlowtableHook).Find(nftaFlowtableHookDevs); told {
		c.Devices = parseDevices(devs)
	}
	return c, true
}

// anyDevice is for what does not say which.
var anyDevice = []Pattern{{Prefix: true}}

func parseDevices(b []byte) []Pattern {
	list := []Pattern{}
	for t, v := range nlsock.Attrs(b) {
		switch t {
		case nftaDeviceName:
			list = append(list, Pattern{Name: nlsock.Str(v)})
		case nftaDevicePrefix: // since 6.16
			list = append(list, Pattern{Name: nlsock.Str(v), Prefix: true})
		default:
			return anyDevice
		}
	}
	return list
}
