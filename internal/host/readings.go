// SPDX-License-Identifier: Apache-2.0

package host

import (
	"maps"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// readings are what a scanner has read of devices. A full scan of the node reads each pod's, which takes
// some of a core with hundreds of pods: what was read is good for a while, the longer the more there
// are. What overlane has changed meanwhile is read again.
type readings struct {
	*node.Scanner
	of    map[node.DevKey]*reading
	owned map[plan.Target]map[plan.Setting]plan.Owned
	took  time.Duration // to read one device, smoothed
}

type reading struct {
	settings *node.Settings // nil: not read
	features map[string]ethtool.Feature
	owned    map[plan.Setting]plan.Owned // what was ours there
	since    time.Time
}

const (
	// readShare is the part of the daemon's time that reading may take: 1/1000.
	readShare = 1000
	// readPause bounds how long it is not noticed that another program has changed a device.
	readPause = 20 * time.Second
)

func newReadings(s *node.Scanner) *readings {
	return &readings{Scanner: s, of: map[node.DevKey]*reading{}}
}

// now begins a full scan; changed is what overlane has changed, whichever mechanism scans. It returns that by setting.
func (r *readings) now(changed []apply.Entry) (ours map[plan.Setting]plan.Owned) {
	r.owned, ours = map[plan.Target]map[plan.Setting]plan.Owned{}, apply.Ours(changed)
	for s, o := range ours {
		if r.owned[s.Target] == nil {
			r.owned[s.Target] = map[plan.Setting]plan.Owned{}
		}
		r.owned[s.Target][s] = o
	}
	maps.DeleteFunc(r.of, func(_ node.DevKey, got *reading) bool { return time.Since(got.since) > 2*readPause })
	return ours
}

// Settings is node.Scanner's.
func (r *readings) Settings(dev node.Dev) (node.Settings, error) {
	got := r.reading(dev)
	if got.settings != nil {
		return *got.settings, nil
	}
	defer r.timed(time.Now())
	set, err := r.Scanner.Settings(dev)
	if err == nil {
		got.settings = &set
	}
	return set, err
}

// Features is node.Scanner's.
func (r *readings) Features(dev node.Dev) (map[string]ethtool.Feature, error) {
	got := r.reading(dev)
	if got.features != nil {
		return got.features, nil
	}
	defer r.timed(time.Now())
	features, err := r.Scanner.Features(dev)
	if err == nil {
		got.features = features
	}
	return features, err
}

// reading is what is known of a device, if it is still good.
func (r *readings) reading(dev node.Dev) *reading {
	got, owned := r.of[dev.Key()], r.owned[plan.Target(dev)]
	if got == nil || time.Since(got.since) >= r.age() || !maps.Equal(got.owned, owned) {
		got = &reading{owned: owned, since: time.Now()}
		r.of[dev.Key()] = got
	}
	return got
}

// age is for how long a reading is good.
func (r *readings) age() time.Duration {
	return min(readShare*r.took*time.Duration(len(r.of)), readPause)
}

func (r *readings) timed(begin time.Time) {
	if r.took == 0 {
		r.took = time.Since(begin)
	}
	r.took += (time.Since(begin) - r.took) / 8
}
