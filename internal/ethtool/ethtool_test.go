// SPDX-License-Identifier: Apache-2.0

package ethtool

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
)

// Reading changes nothing, so that the machine's own loopback device will do
// for it.

func TestFeaturesAgreeWithEthtool(t *testing.T) {
	needTool(t)
	agree(t, "lo")
}

func TestAFeatureIsRequestedAndWhatCameOfItTold(t *testing.T) {
	needTool(t)
	ns := veth(t)
	const sg, tso = "tx-scatter-gather", "tx-tcp-segmentation"
	for _, step := range []struct {
		name string
		on   bool
		want map[string]Feature
	}{
		{sg, false, map[string]Feature{sg: {}, tso: {Requested: true}}}, // TSO waits for SG
		{tso, false, map[string]Feature{sg: {}, tso: {}}},
		{sg, true, map[string]Feature{sg: {Active: true, Requested: true}, tso: {}}},
		{tso, true, map[string]Feature{sg: {Active: true, Requested: true}, tso: {Active: true, Requested: true}}},
	} {
		var got map[string]Feature
		must(t, ns.Do(func() (err error) {
			if err = SetFeature("a", step.name, step.on); err == nil {
				got, err = Features("a")
			}
			return err
		}))
		for name, want := range step.want {
			if diff := cmp.Diff(want, got[name]); diff != "" {
				t.Errorf("%s set to %t: %s (-want +got):\n%s", step.name, step.on, name, diff)
			}
		}
		must(t, ns.Do(func() error { agree(t, "a"); return nil }))
	}
	must(t, ns.Do(func() error {
		if err := SetFeature("a", "hw-tc-offload", true); !errors.Is(err, errFixed) {
			t.Errorf("a feature that cannot change: %v", err)
		}
		return nil
	}))
}

func TestChannelsAgreeWithEthtool(t *testing.T) {
	needTool(t)
	ns := veth(t)
	for _, rx := range []int{1, 3} {
		must(t, ns.Do(func() error {
			if _, err := run("-L", "a", "rx", strconv.Itoa(rx)); err != nil {
				return err
			}
			out, err := run("-l", "a")
			if err != nil {
				return err
			}
			got, err := ReadChannels("a")
			if err != nil {
				return err
			}
			// The most come first, then those in use.
			number := func(what string, nth int) (n int) {
				all := regexp.MustCompile(`(?m)^`+what+`:\s+(\S+)$`).FindAllStringSubmatch(out, -1)
				if len(all) != 2 {
					t.Errorf("ethtool prints %q %d times, not twice:\n%s", what, len(all), out)
					return 0
				}
				n, _ = strconv.Atoi(all[nth][1]) // "n/a" is none
				return n
			}
			want := Channels{MaxRx: number("RX", 0), Rx: number("RX", 1),
				MaxCombined: number("Combined", 0), Combined: number("Combined", 1)}
			if diff := cmp.Diff(want, got); diff != "" || got.Rx != rx {
				t.Errorf("with %d receive channels (-want +got):\n%s", rx, diff)
			}
			return nil
		}))
	}
	if _, err := ReadChannels("lo"); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("channels of loopback, which has none: %v", err)
	}
}

func TestWhatDoesNotExistIsAnError(t *testing.T) {
	if err := SetFeature("lo", "warp", true); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown feature: %v", err)
	}
	// Some bits have no name: they must not be found by it.
	if err := SetFeature("lo", "", true); !errors.Is(err, ErrUnknown) {
		t.Errorf("feature without a name: %v", err)
	}
	for _, device := range []string{"no-such-dev", "a-name-too-long-for-a-device", ""} {
		if _, err := Features(device); !errors.Is(err, unix.ENODEV) {
			t.Errorf("features of device %q: %v", device, err)
		}
		if _, err := ReadChannels(device); !errors.Is(err, unix.ENODEV) {
			t.Errorf("channels of device %q: %v", device, err)
		}
	}
}

// A goroutine's stack moves when it must grow. The calls begin at depths so
// close to one another that it moves at every point of them; an answer that
// the kernel wrote to where the stack was would be missing.
func TestAnswersFollowAStackThatMoves(t *testing.T) {
	want, err := Features("lo")
	must(t, err)
	for depth := range 1500 {
		var got map[string]Feature
		done := make(chan error)
		go func() { // with a new and therefore small stack
			var err error
			below(depth, func() { got, err = Features("lo") })
			done <- err
		}()
		must(t, <-done)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("at depth %d (-want +got):\n%s", depth, diff)
		}
	}
}

// below calls fn with so many small frames on the stack.
//
//go:noinline
func below(depth int, fn func()) int {
	if depth == 0 {
		fn()
		return 0
	}
	return 1 + below(depth-1, fn)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// veth returns a namespace with a veth pair a, b in it, of four queues.
func veth(t *testing.T) *netns.Handle {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: creates a network namespace")
	}
	ns, err := netns.New()
	must(t, err)
	t.Cleanup(func() { ns.Close() })
	must(t, ns.Do(func() error {
		v := netlink.NewVeth(netlink.LinkAttrs{Name: "a", NumRxQueues: 4, NumTxQueues: 4})
		v.PeerName = "b"
		return netlink.LinkAdd(v)
	}))
	return ns
}

func needTool(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("ethtool"); err != nil {
		t.Skip("needs ethtool: compares with what it prints")
	}
}

// run returns what ethtool(8) prints.
func run(args ...string) (string, error) {
	out, err := exec.Command("ethtool", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ethtool %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// agree compares the features of a device of the calling thread's namespace
// with what ethtool(8) prints.
func agree(t *testing.T, device string) {
	t.Helper()
	features, err := Features(device)
	if err != nil {
		t.Error(err)
		return
	}
	out, err := run("-k", device)
	if err != nil {
		t.Error(err)
		return
	}
	word := map[bool]string{true: "on", false: "off"}
	compared := 0
	for line := range strings.Lines(out) {
		name, want, ok := strings.Cut(strings.TrimSpace(line), ": ")
		f, known := features[name] // not the names for groups of features
		if !ok || !known {
			continue
		}
		got := word[f.Active]
		switch {
		case f.Fixed:
			got += " [fixed]"
		case f.Active != f.Requested:
			got += " [requested " + word[f.Requested] + "]"
		}
		if got != want {
			t.Errorf("%s is %q, by ethtool %q", name, got, want)
		}
		compared++
	}
	if compared < 30 {
		t.Errorf("only %d features compared", compared)
	}
}
