// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism/pipeline"
	"github.com/overlane/overlane/test/residue"
)

// Arguments that make this binary the daemon's guardian, or a daemon that splits flows.
const (
	guardian = "guardian"
	splitter = "splitter"
)

func TestMain(m *testing.M) {
	verbs := map[string]func([]string) error{guardian: guard, splitter: splitFlows}
	if len(os.Args) > 1 && verbs[os.Args[1]] != nil {
		if err := verbs[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func guard(args []string) error {
	flags := flag.NewFlagSet(guardian, flag.ContinueOnError)
	dir := flags.String("state-dir", "", "")
	cookie := flags.Uint64("netns-cookie", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	adopt := func(held map[string][]int) (apply.OrphanedLinks, error) { return datapath.Adopt(held) }
	return apply.RunGuardian(*dir, *cookie, adopt, slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

// tunnels lists what runs here; the machines of test/vm name both kinds, while
// a developer's kernel may lack one.
var tunnels = flag.String("tunnels", "vxlan", "kinds of tunnel, separated by commas")

var families = []struct {
	name string
	of   func(*host) netip.Addr
}{
	{"IPv4", func(h *host) netip.Addr { return h.in4 }},
	{"IPv6", func(h *host) netip.Addr { return h.in6 }},
}

func TestOverlayCarriesTrafficPlainAndSteered(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds network namespaces and loads BPF programs")
	}
	if *backlogThreads && !runs(t, "backlog_napi/0") {
		t.Fatal("no thread polls the backlog of core 0")
	}
	for _, kind := range strings.Split(*tunnels, ",") {
		t.Run(kind, func(t *testing.T) {
			if kinds[kind] == nil {
				t.Fatalf("unknown tunnel %q", kind)
			}
			var o overlay
			t.Cleanup(func() {
				if err := o.close(); err != nil {
					t.Error(err)
				}
			})
			if err := o.build(kind); err != nil {
				t.Fatal(err)
			}
			o.onOneCore(t)
			for _, f := range families {
				t.Run("plain "+f.name, func(t *testing.T) { o.carries(t, f.of) })
			}
			t.Run("steered in tier tc", func(t *testing.T) { o.steered(t, governor.TC) })
			t.Run("steered in tier xdp", func(t *testing.T) { o.steered(t, governor.XDP) })
			t.Run("plain again", func(t *testing.T) { o.carries(t, families[0].of) })
		})
	}
}

// carries sends both kinds of traffic through the overlay.
func (o *overlay) carries(t *testing.T, of func(*host) netip.Addr) {
	s := o.stream(t, of)
	o.copyTCP(t, of, 256<<10)
	s.reach(t, 200)
	s.finish(t)
}

// steered lets the daemon act in the second host while datagrams flow: before
// it begins, while it steers, and after it has gone. Each arrives, in order, and
// nothing of the daemon stays.
func (o *overlay) steered(t *testing.T, tier governor.Tier) {
	b := &o.hosts[1]
	residue.Check(t, residue.Scope{Namespaces: []string{residue.FD(b.ns.FD()), residue.FD(b.pod.FD())}})
	s := o.stream(t, families[0].of)
	s.reach(t, 50)
	d, stop := o.start(t, tier)
	var st control.Status
	until(t, "the pipeline steers 200 packets", func() bool {
		st = d.Status()
		return st.State != control.Running || st.Counters.SteeredPackets >= 200
	})
	for _, f := range families {
		o.copyTCP(t, f.of, 256<<10)
	}
	s.reach(t, 200)
	st = d.Status()
	if err := stop(); err != nil {
		t.Errorf("the daemon ended: %v", err)
	}
	s.reach(t, 50)
	s.finish(t)
	t.Logf("%d of %d packets steered, %d changes of lane", st.Counters.SteeredPackets, st.Counters.OverlayPackets, st.Counters.LaneChanges)
	if st.State != control.Running || st.Counters.SteeredPackets == 0 {
		t.Errorf("nothing was steered: %+v", st)
	}
}

// options are those of a daemon that steers.
func options(state string, log io.Writer) daemon.Options {
	return daemon.Options{
		StateDir: state, Cores: []int{0, 1}, Aggregate: governor.Off, Express: governor.Off,
		Online: online, Apart: func() ([]int, error) { return nil, nil },
		Pipeline: pipeline.Options{Mode: governor.Forced, Limits: governor.DefaultLimits()}, GuardianVerb: []string{guardian},
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

// use has a daemon that start has started use other cores.
func (o *overlay) use(t *testing.T, d *daemon.Daemon, cores ...int) {
	t.Helper()
	opts := o.opts
	opts.Cores = cores
	if err := d.Reconfigure(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
}

// start starts a daemon that acts in the second host. What it returns ends it.
func (o *overlay) start(t *testing.T, tier governor.Tier, changes ...func(*daemon.Options)) (*daemon.Daemon, func() error) {
	t.Helper()
	var log bytes.Buffer
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the daemon said:\n%s", log.String())
		}
	})
	opts := options(t.TempDir(), &log)
	opts.Pipeline.Tier = tier
	for _, change := range changes {
		change(&opts)
	}
	o.opts = opts
	ctx, cancel := context.WithCancel(t.Context())
	started, ended := make(chan *daemon.Daemon), make(chan error, 1)
	go func() {
		defer close(ended)
		err := o.hosts[1].ns.Do(func() error {
			d, err := daemon.Start(ctx, opts)
			if err != nil {
				return err
			}
			started <- d
			return d.Run(ctx)
		})
		if err != nil && !errors.Is(err, context.Canceled) {
			ended <- err
		}
	}()
	stop := func() error {
		cancel()
		return <-ended
	}
	t.Cleanup(func() { _ = stop() }) // twice does no harm; the first answer counts
	select {
	case d := <-started:
		return d, stop
	case err := <-ended:
		t.Fatalf("start the daemon: %v", err)
	}
	return nil, nil
}
