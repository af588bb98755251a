// SPDX-License-Identifier: Apache-2.0

package order

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/wire"
)

// account is where packets have stayed, by the counter that says so.
type account map[string]uint64

// place is a device of the receiving path.
type place struct {
	ns  *netns.Handle
	dev string
}

// path is the receiving path, in order.
func path(b *bed.Bed) []place {
	rx := b.Receiver()
	return []place{{rx.NS, rx.Wire}, {rx.Overlay, bed.Tunnel}, {rx.Pods[0].NS, bed.PodDev}}
}

// drops reads the kernel's counters of the path. A backlog or a GRO cell that is
// full counts at the device that the packet was meant for; veth counts at the
// wire what found its ring full.
func drops(b *bed.Bed) (account, error) {
	a := account{}
	for _, p := range path(b) {
		st, err := bed.LinkStats(p.ns, p.dev)
		if err != nil {
			return nil, fmt.Errorf("read drops of %s: %w", p.dev, err)
		}
		a["queues before "+p.dev] = st.RxDropped
	}
	return a, nil
}

func (a account) since(before account) account {
	d := account{}
	for k, v := range a {
		d[k] = v - before[k]
	}
	return d
}

func (a account) sum() (n uint64) {
	for _, v := range a {
		n += v
	}
	return n
}

func (a account) String() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(a)) {
		if a[k] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", k, a[k]))
		}
	}
	if parts == nil {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// losses drop packets on purpose.
type losses map[string]*wire.Loss

// lose drops one packet in a thousand, a third each at the underlay, behind the
// tunnel stage's lane, and behind the pod stage's: the guard has packets in its
// books that never come.
func lose(b *bed.Bed) (losses, error) {
	all := losses{}
	for _, p := range path(b) {
		l, err := wire.DropEvery(p.ns, p.dev, 3000)
		if err != nil {
			return nil, errors.Join(err, all.close())
		}
		all["on purpose at "+p.dev] = l
	}
	return all, nil
}

func (l losses) account() (account, error) {
	a := account{}
	for name, one := range l {
		n, err := one.Dropped()
		if err != nil {
			return nil, err
		}
		a[name] = n
	}
	return a, nil
}

func (l losses) close() error {
	var errs []error
	for _, one := range l {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}
