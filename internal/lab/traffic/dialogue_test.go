// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func TestAnswersAreKnownByTheirLastByte(t *testing.T) {
	m := &memcachedDialogue{}
	m.ask(0)
	object := bytes.Clone(m.want)
	if n := bytes.Count(object, []byte("\r\n")); n != 3 || len(object) < objectSize {
		t.Fatalf("the lab expects %q", object)
	}
	reply := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: %d\r\n\r\n%s", len(page), page)
	for name, tc := range map[string]struct {
		d      Dialogue
		answer []byte
	}{"memcached": {m, object}, "web": {webDialogue{}, reply}} {
		for n := range tc.answer {
			if got, err := tc.d.answered(tc.answer[:n]); got != 0 || err != nil {
				t.Fatalf("%s: the first %d bytes of an answer: %d, %v", name, n, got, err)
			}
		}
		if got, err := tc.d.answered(append(bytes.Clone(tc.answer), "more"...)); got != len(tc.answer) || err != nil {
			t.Errorf("%s: an answer of %d bytes: %d, %v", name, len(tc.answer), got, err)
		}
	}
}

func TestWrongAnswersAreErrors(t *testing.T) {
	m := &memcachedDialogue{}
	m.ask(0)
	other := bytes.Replace(m.want, []byte(keyName(0)+" "), []byte(keyName(1)+" "), 1)
	for what, tc := range map[string]struct {
		d      Dialogue
		answer string
	}{
		"a miss":        {m, "END\r\n"},
		"out of memory": {m, "SERVER_ERROR out of memory\r\n"},
		"another key":   {m, string(other)},
		"not found":     {webDialogue{}, "HTTP/1.1 404 Not Found\r\n"},
		"no length":     {webDialogue{}, "HTTP/1.1 200 OK\r\nServer: x\r\n\r\n"},
		"another size":  {webDialogue{}, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"},
		"another page":  {webDialogue{}, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n<html>", len(page))},
	} {
		if n, err := tc.d.answered([]byte(tc.answer)); err == nil {
			t.Errorf("%s: taken for an answer of %d bytes", what, n)
		}
	}
}

func TestMemcachedIsMostlyAskedForObjects(t *testing.T) {
	sets := 0
	keys := map[string]bool{}
	for client := range 3 {
		d := MemcachedDialogue(client)
		for slot := range 1100 {
			f := strings.Fields(string(d.ask(slot)))
			keys[f[1]] = true
			if f[0] == "set" {
				sets++
			}
		}
	}
	if sets != 300 {
		t.Errorf("%d of 3300 requests store, not one of eleven", sets)
	}
	if len(keys) != objects || len(page) >= 1024 {
		t.Errorf("%d keys, not %d; a page of %d bytes, not under 1 KB", len(keys), objects, len(page))
	}
}

func TestReportsOfLoadGeneratorsAreRead(t *testing.T) {
	if rps, err := parseMemcaslap("cmd_get: 9\n\nRun time: 2.0s Ops: 11354 TPS: 5677 Net_rate: 7.6M/s\n"); rps != 5677 || err != nil {
		t.Errorf("memcaslap: %g %v", rps, err)
	}
	if _, err := parseMemcaslap("cmd_get: 0\n"); err == nil {
		t.Error("a report of memcaslap without a rate is taken for one")
	}
	const wrk = "  4242 requests in 2.00s, 1.2MB read\n%sRequests/sec:   2121.50\nTransfer/sec:      0.61MB\n"
	if rps, err := parseWrk(fmt.Sprintf(wrk, "  Socket errors: connect 0, read 0, write 0, timeout 3\n")); rps != 2121.5 || err != nil {
		t.Errorf("wrk: %g %v", rps, err)
	}
	for _, bad := range []string{"  Socket errors: connect 1, read 0, write 0, timeout 0\n", "  Non-2xx or 3xx responses: 4242\n"} {
		if _, err := parseWrk(fmt.Sprintf(wrk, bad)); err == nil {
			t.Errorf("a report of wrk with %q is taken for a good one", bad)
		}
	}
}

func TestMissingProgramsAreNamedByTheirPackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	const want = "needs memcaslap, no-such-program-here: apt-get install libmemcached-tools no-such-program-here"
	if err := Installed("memcaslap", "no-such-program-here"); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
