// SPDX-License-Identifier: Apache-2.0

package express

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
)

// slowly is how long a slow reader does something else between two datagrams.
const slowly = 200 * time.Microsecond

// startSlowReader floods a pod with one UDP flow, of which an application there reads less than ever comes, and counts
// what that reads.
func startSlowReader(t *testing.T, b *bed.Bed) *atomic.Uint64 {
	t.Helper()
	pod := b.Receiver().Pods[0]
	var c net.PacketConn
	must(t, pod.NS.Do(func() (err error) {
		c, err = net.ListenPacket("udp", netip.AddrPortFrom(pod.IP4, traffic.Port).String())
		return err
	}))
	live, err := traffic.StartLive(b, traffic.LiveConfig{
		Flows: []traffic.Flow{traffic.NewFlow(b, 0, 0, true, false, 0)}, Size: 64, Core: b.PlaceCores().Gen[0],
	})
	if err != nil {
		t.Fatal(err)
	}
	var read atomic.Uint64
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			if _, _, err := c.ReadFrom(buf); err != nil {
				return // closed
			}
			read.Add(1)
			time.Sleep(slowly)
		}
	}()
	t.Cleanup(func() {
		if _, err := live.Stop(); err != nil {
			t.Error(err)
		}
		c.Close()
		<-done
	})
	return &read
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
