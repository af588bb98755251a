// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"testing"
	"time"
)

// While the daemon waits for the kernel, it looks as often as its loop does, however often it is called.
func TestWatchersPollWhileTheDaemonWaits(t *testing.T) {
	ws := NewWatchers(nil, nil, nil)
	ws.watchers[1] = &Watcher{closed: true} // it says that it may be otherwise with each poll
	begun := time.Now()
	polled := begun
	for now := begun.Add(time.Millisecond); now.Before(begun.Add(time.Second)); now = now.Add(time.Millisecond) {
		if ws.Stale(now) {
			if gap := now.Sub(polled); polled != begun && gap != PollEvery {
				t.Errorf("%s lie between two polls", gap)
			}
			polled = now
		}
		if now.Sub(polled) > PollEvery {
			t.Fatalf("no poll for more than %s", PollEvery)
		}
	}
	ws.changed <- struct{}{}
	if now := polled.Add(time.Millisecond); !ws.Stale(now) || ws.Stale(now) {
		t.Error("an event is not told at once, and once")
	}
}
