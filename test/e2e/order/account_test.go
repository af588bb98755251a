// SPDX-License-Identifier: Apache-2.0

package order

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/internal/netns"
)

// account is where packets can have stayed, by the counter that says so.
type account map[string]uint64

// drops reads the kernel's counters of every device of the receiving path. A
// backlog or a GRO cell that is full counts at the device that the packet was
// meant for; veth counts at the wire what found its ring full.
func drops(b *bed.Bed) (account, error) {
	rx := b.Receiver()
	devs := []struct {
		ns  *netns.Handle
		dev string
	}{{rx.NS, rx.Wire}, {rx.Overlay, bed.Tunnel}}
	for _, p := range rx.Pods {
		devs = append(devs, struct {
			ns  *netns.Handle
			dev string
		}{p.NS, bed.PodDev})
	}
	a := account{}
	for _, d := range devs {
		st, err := bed.LinkStats(d.ns, d.dev)
		if err != nil {
			return nil, fmt.Errorf("read drops of %s: %w", d.dev, err)
		}
		a[d.dev+" rx_dropped"] += st.RxDropped
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

// lossEvery is the share of packets that a lossy run drops in all.
const lossEvery = 1000

// losses drop packets at several places of the path: behind the underlay's
// hook, when a packet has its lane and is not there yet; behind the tunnel
// stage's lane; and behind the pod stage's.
type losses map[string]*traffic.Loss

func lose(t *testing.T, b *bed.Bed) losses {
	t.Helper()
	rx := b.Receiver()
	all := losses{}
	for _, at := range []struct {
		ns  *netns.Handle
		dev string
	}{{rx.NS, rx.Wire}, {rx.Overlay, bed.Tunnel}, {rx.Pods[0].NS, bed.PodDev}} {
		l, err := traffic.DropEvery(at.ns, at.dev, 3*lossEvery)
		if err != nil {
			t.Fatal(errors.Join(err, all.close()))
		}
		all["dropped on purpose behind "+at.dev] = l
	}
	return all
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
