// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/netns"
)

// Each queue of the wire is behind a bucket that is never empty: one that were had a timer wait for it.
func TestEachQueueOfTheWireCuts(t *testing.T) {
	needRoot(t)
	for _, queues := range []int{1, 2} {
		ns, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		var kinds []string
		err = within(ns, func(i *inside) {
			v := netlink.NewVeth(netlink.LinkAttrs{Name: "w0", TxQLen: 1000, NumTxQueues: queues, NumRxQueues: queues})
			v.PeerName = "w1"
			i.try("create", i.LinkAdd(v))
			i.up("w0", "w1")
			i.flowControl("w0", queues)
			i.cutting("w0", queues)
			i.cutting("w0", queues) // once more changes nothing
			list, err := i.QdiscList(i.link("w0"))
			i.try("list", err)
			for _, q := range list {
				kinds = append(kinds, q.Type())
				if b, ok := q.(*netlink.Tbf); ok && b.Buffer != 0 {
					t.Errorf("%d queues: a bucket is filled in %d ticks", queues, b.Buffer)
				}
			}
			i.flowControl("w0", queues) // as a reset does
		})
		if err != nil {
			t.Fatal(err)
		}
		cut := 0
		for _, k := range kinds {
			if k == "tbf" {
				cut++
			}
		}
		if cut != queues {
			t.Errorf("%d queues have %v", queues, kinds)
		}
	}
}
