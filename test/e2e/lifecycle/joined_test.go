// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// ordinaryRules are some of kube-proxy's and Docker's: choices among packets where only the first of a
// connection comes by, states, marks, addresses.
const ordinaryRules = `table ip kube {
	map no-endpoints { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.0.11 . udp . 53 : drop }; }
	chain a { dnat to 10.244.0.2; }
	chain b { dnat to 10.244.0.3; }
	chain service { numgen random mod 2 vmap { 0 : goto a, 1 : goto b }; }
	chain pre { type nat hook prerouting priority dstnat; ip daddr 10.96.0.10 goto service; }
	chain input { type filter hook input priority 0; ct state new ip daddr . meta l4proto . th dport vmap @no-endpoints; }
	chain forward { type filter hook forward priority 0; ct state established,related counter accept; iifname "docker0" oifname != "docker0" accept; meta mark and 0x4000 == 0x4000 accept; }
	chain post { type nat hook postrouting priority srcnat; ip saddr 172.17.0.0/16 masquerade; }
}`

// nft runs nft(8) in a namespace.
func nft(t *testing.T, ns *netns.Handle, args ...string) []byte {
	t.Helper()
	var out []byte
	must(t, ns.Do(func() error {
		cmd := exec.Command("nft", args...)
		var err error
		if out, err = cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w\n%s", err, out)
		}
		return nil
	}))
	return out
}

// counterOf is what a named counter of the table x has.
func counterOf(t *testing.T, ns *netns.Handle, counter string) int {
	t.Helper()
	var said struct {
		Nftables []struct {
			Counter struct {
				Packets int `json:"packets"`
			} `json:"counter"`
		} `json:"nftables"`
	}
	must(t, json.Unmarshal(nft(t, ns, "--json", "list counter ip x "+counter), &said))
	n := 0
	for _, o := range said.Nftables {
		n += o.Counter.Packets
	}
	return n
}

// onlooker is something that would see joined datagrams as one packet.
type onlooker struct {
	name string
	// plant puts it there, and returns what takes it away.
	plant func(*testing.T, *bed.Host) (uproot func())
	want  string
	// on is what the wire and the tunnel still join.
	on [2]bool
	// same tells whether it sees what it would without overlane.
	same func(*testing.T, *bed.Host) error
}

// rules are onlookers of nftables, in a table x.
func rules(at func(*bed.Host) *netns.Handle, script string) func(*testing.T, *bed.Host) func() {
	return func(t *testing.T, h *bed.Host) func() {
		nft(t, at(h), script)
		return func() { nft(t, at(h), "delete table ip x") }
	}
}

func ofPod(h *bed.Host) *netns.Handle  { return h.Pods[0].NS }
func ofHost(h *bed.Host) *netns.Handle { return h.NS }

// eavesdropper is a socket of a pod that gets packets as they pass.
type eavesdropper struct {
	domain, typ, proto, header int
	fd                         int
}

func (s *eavesdropper) plant(t *testing.T, h *bed.Host) func() {
	must(t, ofPod(h).Do(func() (err error) {
		s.fd, err = unix.Socket(s.domain, s.typ|unix.SOCK_CLOEXEC, s.proto)
		return err
	}))
	return func() { must(t, unix.Close(s.fd)) }
}

// same empties the socket, and reads what comes then.
func (s *eavesdropper) same(*testing.T, *bed.Host) error {
	buf := make([]byte, 1<<16)
	for {
		if _, _, err := unix.Recvfrom(s.fd, buf, unix.MSG_DONTWAIT); err != nil {
			break
		}
	}
	const datagram = 64 + 8 + 20
	for seen := 0; seen < 500; {
		n, _, err := unix.Recvfrom(s.fd, buf, 0)
		if err != nil {
			return err
		}
		ip := buf[s.header:n]
		if len(ip) < 20 || ip[0]>>4 != 4 || ip[9] != unix.IPPROTO_UDP {
			continue
		}
		if seen++; len(ip) != datagram {
			return fmt.Errorf("a packet of %d bytes, of datagrams that have %d", len(ip), datagram)
		}
	}
	return nil
}

func TestAggregationStandsAsideForWhatWouldSeeIt(t *testing.T) {
	speed.Long(t)
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{Topology: bed.Nested})
	h := b.Receiver()
	for _, ns := range []*netns.Handle{h.NS, h.Overlay, ofPod(h)} {
		nft(t, ns, ordinaryRules)
	}
	check(t, b)
	d, l := aggregating(t, b)

	const counters = "table ip x { counter few { }; counter rest { }; chain f { type filter hook %s priority 0; %s; meta l4proto udp counter name rest drop; }; }"
	raw := &eavesdropper{domain: unix.AF_INET, typ: unix.SOCK_RAW, proto: unix.IPPROTO_UDP}
	packets := &eavesdropper{domain: unix.AF_PACKET, typ: unix.SOCK_RAW, proto: 0x0300, header: 14}
	for i, o := range []onlooker{
		{"a pod's rule on packet length", rules(ofPod, fmt.Sprintf(counters, "input", "meta length 0-300 counter name few accept")),
			"chain ip x f has the packet's length", [2]bool{}, func(t *testing.T, h *bed.Host) error {
				before := [2]int{counterOf(t, ofPod(h), "few"), counterOf(t, ofPod(h), "rest")}
				rig.Until(t, "datagrams come", func() (bool, string) {
					n := counterOf(t, ofPod(h), "few") - before[0]
					return n > 3000, fmt.Sprint(n)
				})
				if n := counterOf(t, ofPod(h), "rest") - before[1]; n > 0 {
					return fmt.Errorf("%d datagrams were dropped", n)
				}
				return nil
			}},
		{"a pod's limit", rules(ofPod, fmt.Sprintf(counters, "input", "limit rate 1000/second burst 100 packets counter name few accept")),
			"chain ip x f has a rate of packets", [2]bool{}, func(t *testing.T, h *bed.Host) error {
				began, before := time.Now(), [2]int{counterOf(t, ofPod(h), "few"), counterOf(t, ofPod(h), "rest")}
				rig.Until(t, "datagrams come", func() (bool, string) {
					n := counterOf(t, ofPod(h), "rest") - before[1]
					return n > 10000, fmt.Sprint(n)
				})
				n, most := counterOf(t, ofPod(h), "few")-before[0], 1000*time.Since(began).Seconds()+200
				if float64(n) > most {
					return fmt.Errorf("%d packets passed, of %.0f that the limit has", n, most)
				}
				return nil
			}},
		{"a pod's raw socket", raw.plant, "a raw socket", [2]bool{}, raw.same},
		{"a pod's packet socket", packets.plant, "a packet socket", [2]bool{}, packets.same},
		{"the host's limit on what it routes", rules(ofHost, fmt.Sprintf(counters, "forward", "limit rate 1000/second accept")),
			"chain ip x f has a rate of packets", [2]bool{false, true}, nil},
	} {
		if i > 0 {
			d.Reload(aggregates)
			rig.Until(t, "datagrams are joined again", func() (bool, string) {
				on := forwarding(t, b)
				return on == [2]bool{true, true}, fmt.Sprint(on)
			})
		}
		uproot := o.plant(t, h)
		rig.Until(t, "status says what is in the way: "+o.name, func() (bool, string) {
			st, on := d.Status(), forwarding(t, b)
			said, err := json.Marshal([]any{st.Mechanisms, st.Devices})
			must(t, err)
			return on == o.on && strings.Contains(string(said), o.want), fmt.Sprintf("%s, wire and tunnel %v", said, on)
		})
		if o.same != nil {
			if err := o.same(t, h); err != nil {
				t.Errorf("%s: %v", o.name, err)
			}
		}
		uproot()
		d.Reload("pipeline: off\nmetrics: off\nmicroflows: {mode: off}\naggregate: off\n")
		rig.Until(t, "it is off", func() (bool, string) {
			on := forwarding(t, b)
			return on == [2]bool{}, fmt.Sprint(on)
		})
	}

	// Forced it acts all the same.
	uproot := rules(ofHost, fmt.Sprintf(counters, "forward", "limit rate 1000/second accept"))(t, h)
	d.Reload(strings.Replace(aggregates, "auto", "forced", 1))
	rig.Until(t, "it is forced", func() (bool, string) {
		on := forwarding(t, b)
		return on == [2]bool{true, true}, fmt.Sprint(on)
	})
	uproot()
	d.Signal(unix.SIGTERM)
	d.Exited()
	d.GoneBoth()
	d.NothingLeft()
	joined(t, l.Stop(), 12)
}

// What else the node receives neither wakes it, nor makes it look away from the overlay.
func TestOtherTrafficDoesNotBlindAggregation(t *testing.T) {
	speed.Long(t)
	b := lab(t, bed.Options{})
	h := b.Receiver()
	d := rig.Start(t, rig.Spec{NS: h.NS, Config: aggregates})
	var in, out int
	must(t, h.NS.Do(func() (err error) {
		addr := &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}
		if in, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err = unix.Bind(in, addr); err != nil {
			return err
		}
		if out, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Connect(out, addr)
	}))
	defer unix.Close(in)
	defer unix.Close(out)
	rig.Until(t, "no poll is traced", func() (bool, string) { return traces(t, d.PID) == 0, d.Log() })
	// More than 10 000 packets a second on loopback, for longer than the daemon takes to look.
	sent := 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); sent++ {
		must(t, unix.Send(out, []byte("x"), 0))
	}
	if sent < 40_000 {
		t.Skipf("needs a machine that sends 40000 packets in two seconds: this one sends %d", sent)
	}
	if log := d.Log(); strings.Contains(log, "aggregate parked") || strings.Contains(log, "aggregation parked") {
		t.Errorf("%d packets on loopback have it look at the tunnels", sent)
	}
	if n := traces(t, d.PID); n > 0 {
		t.Errorf("%d packets on loopback have it trace polls", sent)
	}
	m := d.Status().Mechanism("aggregate")
	if m.State != control.Standby || !strings.HasPrefix(m.Reason, "fewer than") {
		t.Errorf("after other traffic: %+v", m)
	}
	l := rig.StartLoad(t, b, 2)
	rig.Until(t, "datagrams are joined", func() (bool, string) {
		c := d.Status().Counters
		return c.SuperPackets > 100, fmt.Sprintf("%+v", c)
	})
	d.Signal(unix.SIGTERM)
	d.Exited()
	l.Stop()
}
