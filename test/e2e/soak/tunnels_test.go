// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/residue"
)

// Dozens of tunnels come at once. The kernel waits for all cores for each program that comes to a device, or leaves it:
// the daemon has some on no more tunnels than it steers, and decides between two of them.
func TestABurstOfTunnelsIsBoundedWork(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{})
	residue.Check(t, rig.Scope(b))
	l := rig.StartSteady(t, b, 2)
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: fmt.Sprintf("pipeline: forced\naggregate: forced\n"+
		"priority: {rules: [{name: bulk, proto: udp, port: %d, class: bulk}]}\n", traffic.Port)})
	s := &life{t: t, b: b, d: d, l: l}
	d.Says("pipeline active")

	const many = 60
	script := func(line string) {
		t.Helper()
		var in bytes.Buffer
		for i := range many {
			in.WriteString(strings.ReplaceAll(line, "#", fmt.Sprint(i)))
		}
		err := b.Receiver().NS.Do(func() error {
			ip := exec.Command("ip", "-batch", "-")
			ip.Stdin = &in
			if out, err := ip.CombinedOutput(); err != nil {
				return fmt.Errorf("ip: %w\n%s", err, out)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	before := s.look()
	script(fmt.Sprintf("link add many# type vxlan id 100# dstport %d dev %s\nlink set many# up\n",
		bed.TunnelPort, b.Receiver().Wire))
	rig.Until(t, "all tunnels are served, as far as they are to be", func() (bool, string) {
		tunnels, alone := 0, 0
		st := s.status()
		for _, dev := range st.Devices {
			if dev.Role == control.Tunnel {
				tunnels++
			}
			if dev.Role == control.Tunnel && dev.State == control.Manual {
				alone++
			}
		}
		served := tunnels == many+1 && alone == tunnels-datapath.MaxTunnels &&
			st.Mechanism("pipeline").State == control.Active && st.Counters.SteeredPackets > 0
		return served, fmt.Sprintf("%d tunnels, %d of them left alone", tunnels, alone)
	})
	l.GoesOn()
	now := s.look()
	t.Logf("with one tunnel: %s", before)
	t.Logf("with %d more: %s", many, now)
	// Of the pipeline and of aggregation, on each of them.
	if most := before.Links + 2*datapath.MaxTunnels; now.Links > most {
		t.Errorf("%d programs are on devices, %d at most are to be", now.Links, most)
	}
	if r := d.Verb("off"); r.Code != 0 {
		t.Errorf("overlane off: %s", r)
	}
	d.GoneBoth()
	if log := d.Log(); strings.Contains(log, "did not get to decide") {
		t.Errorf("the daemon did not decide:\n%s", log)
	}
	script("link del many#\n")
	inOrder(t, l.Stop())
}
