// SPDX-License-Identifier: Apache-2.0

package nics

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestAReceiverTellsLostFromLate(t *testing.T) {
	r := &Receiver{flows: map[uint64]*flow{}}
	at := time.Now().Add(-time.Minute)
	for _, n := range []uint64{5, 6, 8, 7, 7, 11} {
		r.take(at, 1, n)
		at = at.Add(10 * time.Millisecond)
	}
	r.take(at.Add(300*time.Millisecond), 2, 1)
	c := r.Cut()
	// Since the last datagram there is a pause, up to now.
	if c.Pause < 50*time.Second {
		t.Errorf("a pause that lasts: %v", c.Pause)
	}
	c.Pause = 0
	if want := (Count{Got: 6, Lost: 2, Late: 1, Again: 1}); c != want {
		t.Errorf("got %+v, want %+v", c, want)
	}
	now := time.Now()
	r.take(now.Add(-20*time.Millisecond), 1, 12)
	r.at = now
	if c := r.Cut(); c.Got != 1 || c.Lost != 0 || c.Late != 0 {
		t.Errorf("the second time: %+v", c)
	}
}

func TestTheTableTellsWhyAndHowLong(t *testing.T) {
	var r Row
	text := `{"NIC":"igb","Kernel":"6.12.1+deb12-amd64","Mechanism":"priority","State":"standby","Reason":"a | b","Exit":-1,
		"Attach":{"In":{"Pause":1500000000,"Late":2},"Out":{"Pause":7000000},"Stall":6000000},"Load":{"Late":1},"Carrier":4,"Left":["x"]}`
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	want := `| priority | 6.12.1 | no, standby: a \| b | 0, 0, 0 | 1500, 7, 6 | 0, 0, 0 | 3 | 4 | no, 1 differences |`
	if got := Table([]Row{r}); !strings.HasPrefix(got, "### igb\n") || !strings.HasSuffix(got, want+"\n\n") {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
