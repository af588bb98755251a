// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
)

func TestEveryLoadedProgramIsOverlanes(t *testing.T) {
	d := load(t)
	p, err := d.LoadPriority()
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]uint32{}
	for name, prog := range map[string]*ebpf.Program{"shared": d.xdp.OlUnderlayXdp, "priority": p.objs.OlPriorityXdp, "two lanes": p.objs.OlPrioTwoXdp} {
		info, err := prog.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		if ids[name] = uint32(id); !d.Owns(ids[name]) {
			t.Errorf("program %d (%s) is taken for one of others", id, name)
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	// A snapshot may still tell of one that is gone.
	if !d.Owns(ids["priority"]) {
		t.Error("a program that is gone is taken for one of others")
	}
}

func TestARefusalSaysWhatTheKernelSays(t *testing.T) {
	d := load(t)
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	const lo = 1
	_, err = d.AttachXDP(Device{Netns: ns, Ifindex: lo})
	var no *Refused
	if !errors.As(err, &no) || no.Errno != unix.EOPNOTSUPP || !strings.Contains(no.Reason, "does not support XDP in native mode") {
		t.Errorf("lo: %v", err)
	}
	if _, err := d.AttachXDP(Device{Netns: ns, Ifindex: 77}); !errors.Is(err, unix.ENODEV) {
		t.Errorf("no device: %v", err)
	}
}
