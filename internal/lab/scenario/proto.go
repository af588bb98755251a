package scenario

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// proto: "proto:key=value,..." in OL_PROTO_<n>
func startProto(name string) func(context.Context, *env, scenario) (session, error) {
	return func(_ context.Context, e *env, _ scenario) (session, error) { return protoStart(e, os.Getenv(name)) }
}

func setSched(tid int, s string) error {
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr}
	f := strings.Split(s, ":")
	n := 0
	if len(f) > 1 {
		n, _ = strconv.Atoi(f[1])
	}
	switch f[0] {
	case "fifo":
		attr.Policy, attr.Priority = unix.SCHED_FIFO, uint32(n)
	case "nice":
		attr.Nice = int32(n)
	case "slice": // nice -20 with a slice of n us
		attr.Nice, attr.Runtime = -20, uint64(n)*1000
	case "batch":
		attr.Policy, attr.Nice = unix.SCHED_BATCH, int32(n)
	case "idle":
		attr.Policy = unix.SCHED_IDLE
	}
	return unix.SchedSetAttr(tid, attr, 0)
}

func protoStart(e *env, cfg string) (ses session, err error) {
	opt := map[string]string{"napi": "nice:-20", "lane": "nice:0", "mode": "0", "cpu": "0", "limit": "8", "q": "512", "xdp": "1", "vgro": "1", "gro": "1"}
	for _, kv := range strings.Split(cfg, ",") {
		k, v, _ := strings.Cut(kv, "=")
		opt[k] = v
	}
	tids, err := e.bed.NAPIThreads()
	if err != nil {
		return ses, err
	}
	for _, t := range tids {
		if err := setSched(t, opt["napi"]); err != nil {
			return ses, fmt.Errorf("napi: %w", err)
		}
	}
	rx := e.bed.Receiver()
	_ = rx
	if opt["xdp"] == "0" {
		return session{end: func() error { return setSched(tids[0], "nice:-20") }}, nil
	}
	spec, err := ebpf.LoadCollectionSpec("/tmp/w/proto/hi.o")
	if err != nil {
		return ses, err
	}
	var ifi *net.Interface
	if err := rx.NS.Do(func() error { ifi, err = net.InterfaceByName(rx.Wire); return err }); err != nil {
		return ses, err
	}
	num := func(k string) uint32 { n, _ := strconv.Atoi(opt[k]); return uint32(n) }
	lm, err := ebpf.NewMap(spec.Maps["lanes"])
	if err != nil {
		return ses, err
	}
	info, _ := lm.Info()
	id, _ := info.ID()
	for k, v := range map[string]uint32{"mode": num("mode"), "cpu": num("cpu"), "limit": num("limit"), "ifindex": uint32(ifi.Index), "map_id": uint32(id)} {
		if err := spec.Variables[k].Set(v); err != nil {
			return ses, err
		}
	}
	before, _ := cpumapThreads()
	if err := lm.Put(num("cpu"), struct {
		Q  uint32
		FD int32
	}{num("q"), 0}); err != nil {
		return ses, err
	}
	after, _ := cpumapThreads()
	var mine []int
	for _, p := range after {
		old := false
		for _, b := range before {
			old = old || b == p
		}
		if !old {
			mine = append(mine, p)
		}
	}
	if len(mine) != 1 {
		return ses, fmt.Errorf("lane threads %v", mine)
	}
	if err := setSched(mine[0], opt["lane"]); err != nil {
		return ses, fmt.Errorf("lane: %w", err)
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{"lanes": lm}})
	if err != nil {
		return ses, err
	}
	var links []link.Link
	for _, n := range []string{"poll", "enq", "deq"} {
		if opt["mode"] != "1" && n != "enq" {
			continue
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: coll.Programs[n]})
		if err != nil {
			return ses, err
		}
		links = append(links, l)
	}
	err = rx.NS.Do(func() error {
		l, err := link.AttachXDP(link.XDPOptions{Program: coll.Programs["hi"], Interface: ifi.Index, Flags: link.XDPDriverMode})
		links = append(links, l)
		return err
	})
	if err != nil {
		return ses, err
	}
	e.threads = func() ([]int, error) { return mine, nil }
	return session{end: func() error {
		line := "   proto " + cfg
		for _, k := range []string{"st_high", "st_inline", "st_lane", "st_enq", "st_deq", "st_drop", "st_full", "st_polls"} {
			var n uint64
			_ = coll.Variables[k].Get(&n)
			line += fmt.Sprintf(" %s=%d", k[3:], n)
		}
		if os.Getenv("OL_PROTO_V") != "" {
			e.logf("%s", line)
		}
		var errs []error
		for _, l := range links {
			errs = append(errs, l.Close())
		}
		coll.Close()
		errs = append(errs, lm.Close())
		_ = setSched(tids[0], "nice:-20")
		return errors.Join(errs...)
	}}, nil
}
