// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
)

// shortcuts are priority's mode sync: from the tunnels straight to the pods, where
// nothing is skipped by that. Which foreign program forwards there may change at any time.
type shortcuts struct {
	dp       *datapath.Shortcuts
	watchers *shortcut.Watchers
	hooks    mechanism.Hooks // on tunnels

	paths   int         // tunnels times pods
	without []plan.Skip // pods that have no redirect path
}

// syncAttachFor is for how long its programs are attached at once: they are on few tunnels, and Follow is not called
// again soon.
const syncAttachFor = time.Minute

func (a *placed) startSync(watchers *shortcut.Watchers) error {
	dp, err := a.dp.LoadShortcuts()
	if err != nil {
		return err
	}
	a.sync = &shortcuts{dp: dp, watchers: watchers, hooks: mechanism.Hooks{}}
	return nil
}

// Changed is mechanism.Mechanism's: what forwards may have changed, in mode sync.
func (p *Priority) Changed() <-chan struct{} {
	if p.placed == nil || p.placed.sync == nil {
		return nil
	}
	return p.placed.sync.watchers.Changed()
}

// Follow is mechanism.Mechanism's.
func (p *Priority) Follow(context.Context, time.Time) error { return p.followSync() }

// followSync evaluates each way from a tunnel to a pod anew.
func (p *Priority) followSync() error {
	if p.placed == nil || p.placed.sync == nil {
		return nil
	}
	s := p.placed.sync
	pods := map[node.DevKey]node.Pod{}
	for _, pod := range p.host.Snapshot().Pods {
		pods[pod.Host.Key()] = pod
	}
	want := map[datapath.ShortcutKey]datapath.Shortcut{}
	twice := map[datapath.ShortcutKey]bool{}
	s.paths, s.without = 0, nil
	verdicts, err := s.watchers.Check(p.host.Snapshot())
	for _, v := range verdicts {
		s.paths++
		if v.Safe() {
			v.Reason = p.elsewhere(pods[v.Host.Key()])
		}
		key := datapath.ShortcutKey{Tunnel: v.Tunnel.Ifindex, MAC: v.MAC}
		if _, taken := want[key]; v.Safe() && (taken || twice[key]) {
			delete(want, key)
			twice[key] = true
			v.Reason = "a tunnel in another network namespace has the same number and a pod with the same address"
		}
		if !v.Safe() {
			s.without = append(s.without, plan.Skip{What: v.Host.String(), Reason: "no redirect path: " + v.Reason})
			continue
		}
		want[key] = datapath.Shortcut{
			Host: v.Host.Ifindex, MaxLen: v.MTU + shortcut.Tagged, Refresh: v.Refresh / shortcut.RefreshPart,
		}
	}
	// Attaching takes long on many tunnels: a path that is not safe any more goes first.
	err = errors.Join(err, s.dp.Set(want))
	return errors.Join(err, s.hooks.Follow(p.host, plan.Sync(syncTunnels(p.host.Snapshot())), syncAttachFor, s.dp.AttachTunnel))
}

// elsewhere says why a pod's packets may wait on other cores than the tunnel's.
func (p *Priority) elsewhere(pod node.Pod) string {
	if p.host.PipelineArmed() {
		return "the pipeline moves packets between the pod's cores"
	}
	set, err := p.host.Scanner().Settings(pod.Peer)
	if err != nil {
		return fmt.Sprintf("whether RPS moves the pod's packets cannot be read: %v", err)
	}
	if slices.ContainsFunc(set.RPSCPUs, func(mask string) bool { return strings.Trim(mask, "0,") != "" }) {
		return "RPS moves the pod's packets to other cores"
	}
	return ""
}

// reason says which way latency traffic goes.
func (s *shortcuts) reason() string {
	switch safe := s.paths - len(s.without); {
	case s.paths == 0:
		return "sync, as soon as there is a pod with a veth"
	case safe == 0:
		return "stage by stage, " + s.without[0].Reason
	case len(s.without) == 0:
		return "from the tunnel straight to the pods"
	default:
		return fmt.Sprintf("from the tunnel straight to %d of %d pods", safe, s.paths)
	}
}

func (s *shortcuts) close() error {
	return errors.Join(s.hooks.Close(), s.watchers.Close(), s.dp.Close())
}
