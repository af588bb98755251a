// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/nlsock"
)

// side is what only a scan of NICs takes.
type side struct {
	subscribed bool
	xfrm       *nlsock.Conn
	sysfs      *os.Root
	queues     map[int]*queueMasks // by NIC
}

func (s *side) close() error {
	var errs []error
	for _, q := range s.queues {
		errs = append(errs, q.close())
	}
	if s.xfrm != nil {
		errs = append(errs, s.xfrm.Close())
	}
	if s.sysfs != nil {
		errs = append(errs, s.sysfs.Close())
	}
	return errors.Join(errs...)
}

// CheckIngress evaluates each NIC by what is so now. What cannot be read is a
// reason against. It takes what Check takes for the namespace, three dumps more
// and, for each NIC, some small files: 0.5 to 0.7 ms as measured (BenchmarkCheckIngress),
// and more where rp_filter is loose and the main table long. From the first time on
// Events tells of what concerns NICs, too.
func (w *Watcher) CheckIngress(list []Ingress) []IngressVerdict {
	f := IngressFacts{Cookie: w.cookie, NICs: map[int]NIC{}}
	f.Unknown = w.gather(&w.nics, "what the tunnels' packets would skip", func() error { return w.scanIngress(&f, list) })
	verdicts := make([]IngressVerdict, len(list))
	for i, in := range list {
		verdicts[i] = EvaluateIngress(f, in)
	}
	return verdicts
}

// scanIngress runs on a thread in the namespace.
func (w *Watcher) scanIngress(f *IngressFacts, list []Ingress) error {
	if !w.side.subscribed {
		if err := w.subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE); err != nil {
			return err
		}
		w.side.subscribed = true
	}
	w.nics.attached, w.nics.known = w.attached()
	links, err := w.links()
	if err != nil {
		return err
	}
	filters, err := w.filters()
	if err != nil {
		return err
	}
	loose := false
	for _, in := range list {
		index := in.NIC.Ifindex
		l, ok := links[index]
		if _, seen := f.NICs[index]; !ok || seen || in.NIC.NetnsCookie != w.cookie {
			continue
		}
		n := NIC{Device: l.Device, PortOf: links[l.Master].Name, Above: above(links, index)}
		n.Filters = filters[index]
		n.XDP = w.foreignXDP(l)
		if err := w.nic(&n, index, l.promisc); err != nil {
			n.Unknown = fmt.Sprintf("what concerns the packets of %s cannot be read: %v", n.Name, err)
		}
		loose = loose || n.PathFilter == loosePath
		f.NICs[index] = n
	}
	w.side.keep(f.NICs)
	return w.host(f, loose)
}

// foreignXDP returns the foreign program on a device, 0 if there is none.
// Beside one in the driver another may be in the hardware.
func (w *Watcher) foreignXDP(l linkInfo) uint32 {
	for _, id := range l.xdp {
		if !w.own(id) {
			return id
		}
	}
	return 0
}

// above lists the devices that name another as theirs.
func above(links map[int]linkInfo, index int) []Above {
	var list []Above
	for _, l := range links {
		if l.lower == index && l.nsid < 0 {
			list = append(list, Above{l.Name, l.Kind})
		}
	}
	slices.SortFunc(list, func(a, b Above) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// nic checks what is not in the list of devices.
func (w *Watcher) nic(n *NIC, index int, promisc bool) error {
	features, err := ethtool.Features(n.Name)
	if err != nil {
		return fmt.Errorf("read features: %w", err)
	}
	n.Tags = features["rx-vlan-hw-parse"].Active && (promisc || !features["rx-vlan-filter"].Active)
	if n.TCX, err = w.foreign(&w.nics, index, ebpf.AttachTCXIngress); err != nil {
		return fmt.Errorf("list tc programs: %w", err)
	}
	if n.Addrs, err = w.addrs(index); err != nil {
		return err
	}
	for _, dev := range []string{"all", n.Name} {
		v, err := read(&w.nics, func() (int, error) { return number("/proc/sys/net/ipv4/conf/" + dev + "/rp_filter") })
		if err != nil {
			return err
		}
		n.PathFilter = max(n.PathFilter, v)
	}
	n.RPS, err = w.masks(index, n.Name)
	return err
}

// host checks what concerns all NICs. loose: one of them asks for routes.
func (w *Watcher) host(f *IngressFacts, loose bool) error {
	var err error
	if f.Netfilter.Chains, err = w.chains(&w.nics); err != nil {
		return err
	}
	links, err := w.ipHooks(&f.Netfilter, &w.nics)
	if err != nil {
		return err
	}
	f.Selectors = links.netns()
	if f.Rules, err = w.rules(); err != nil {
		return err
	}
	if loose {
		if f.Default, err = w.defaultRoute(); err != nil {
			return err
		}
	}
	f.Policies, f.Blocks, err = w.policies()
	return err
}

// number reads a setting that has to be there.
func number(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("parse %s: %w", path, err)
	}
	return n, nil
}
