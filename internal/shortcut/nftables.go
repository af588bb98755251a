// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
)

// Not in golang.org/x/sys.
const (
	nftaGenID = 1

	nftaHookDevs = 4

	nftaFlowtableTable    = 1
	nftaFlowtableName     = 2
	nftaFlowtableHook     = 3
	nftaFlowtableHookDevs = 3

	nftaDeviceName   = 1
	nftaDevicePrefix = 2

	nfInetIngress = 5
	netdevIngress = 0 // NF_NETDEV_INGRESS
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
func (w *Watcher) nftables(built bool, rs *readings) (*nftables, error) {
	// To ask, or to subscribe, would load it.
	if there, err := module(rs, built, "nf_tables"); !there || err != nil {
		return nil, err
	}
	n := &w.nft
	if n.c != nil {
		return n, nil
	}
	c, err := nlsock.Dial(unix.NETLINK_NETFILTER, make([]byte, 1<<16))
	if err != nil {
		return nil, err
	}
	if err := w.subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	n.c = c
	return n, nil
}

// chains lists base chains and flow tables.
func (w *Watcher) chains(built bool, rs *readings) ([]Chain, error) {
	n, err := w.nftables(built, rs)
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
	var gen uint32
	err := n.c.Do(nft(unix.NFT_MSG_GETGEN), 0, make([]byte, sizeofGenmsg), func() {}, func(b []byte) error {
		for t, v := range nlsock.Attrs(b[min(sizeofGenmsg, len(b)):]) {
			if t == nftaGenID {
				gen = be32(v)
			}
		}
		return nil
	})
	if err == nil && gen == 0 {
		err = errors.New("no answer") // it begins with 1
	}
	if err != nil {
		return 0, fmt.Errorf("ask nftables for its generation: %w", err)
	}
	return gen, nil
}

func (n *nftables) list() ([]Chain, error) {
	var chains, flows []Chain
	for _, q := range []struct {
		msg   uint16
		into  *[]Chain
		parse func([]byte) (Chain, bool)
	}{
		{unix.NFT_MSG_GETCHAIN, &chains, parseChain},
		{unix.NFT_MSG_GETFLOWTABLE, &flows, parseFlowtable},
	} {
		err := n.c.Do(nft(q.msg), unix.NLM_F_DUMP, make([]byte, sizeofGenmsg),
			func() { *q.into = nil },
			func(b []byte) error {
				if c, ok := q.parse(b); ok {
					*q.into = append(*q.into, c)
				}
				return nil
			})
		if err != nil {
			return nil, fmt.Errorf("list the chains of nftables: %w", err)
		}
	}
	return append(chains, flows...), nil
}

// parseChain returns false for a chain that only other chains jump to.
func parseChain(b []byte) (Chain, bool) {
	if len(b) < sizeofGenmsg {
		return Chain{}, false
	}
	c := Chain{Family: b[0]}
	base := false
	for t, v := range nlsock.Attrs(b[sizeofGenmsg:]) {
		switch t {
		case unix.NFTA_CHAIN_TABLE:
			c.Table = nlsock.Str(v)
		case unix.NFTA_CHAIN_NAME:
			c.Name = nlsock.Str(v)
		case unix.NFTA_CHAIN_HOOK:
			base = true
			for t, v := range nlsock.Attrs(v) {
				switch t {
				case unix.NFTA_HOOK_HOOKNUM:
					c.Hook = int(be32(v))
				case nftaHookDevs:
					c.Devices = parseDevices(v)
				}
			}
		}
	}
	bound := c.Family == unix.NFPROTO_NETDEV || c.Family == unix.NFPROTO_INET && c.Hook == nfInetIngress
	if bound && c.Devices == nil {
		c.Devices = anyDevice
	}
	return c, base
}

func parseFlowtable(b []byte) (Chain, bool) {
	if len(b) < sizeofGenmsg {
		return Chain{}, false
	}
	c := Chain{Family: b[0], Hook: -1, Devices: anyDevice}
	for t, v := range nlsock.Attrs(b[sizeofGenmsg:]) {
		switch t {
		case nftaFlowtableTable:
			c.Table = nlsock.Str(v)
		case nftaFlowtableName:
			c.Name = nlsock.Str(v)
		case nftaFlowtableHook:
			for t, v := range nlsock.Attrs(v) {
				if t == nftaFlowtableHookDevs {
					c.Devices = parseDevices(v)
				}
			}
		}
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

func be32(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}
