// SPDX-License-Identifier: Apache-2.0

package parser

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/overlane/overlane/test/parser/oracle"
	"github.com/overlane/overlane/test/parser/table"
)

// seeded is a source of random numbers; TEST_SEED repeats a run.
func seeded(t *testing.T) (*rand.Rand, uint64) {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0)), seed
}

// parsed is a line of parse_pipe.
type parsed struct {
	reason         int
	hash, datagram uint64
	fragment       oracle.Fragment
	mayConcern     int
	l4, room       int
}

// parse sends frames through the compiled parser.
func parse(t *testing.T, views []oracle.View) []parsed {
	t.Helper()
	var tunnels []string
	for _, tunnel := range table.Tunnels {
		tunnels = append(tunnels, fmt.Sprintf("%d:%d:%d", tunnel.Kind, tunnel.Port, uint32(tunnel.VNI)))
	}
	var in bytes.Buffer
	for _, v := range views {
		header := binary.LittleEndian.AppendUint32(nil, uint32(len(v.Data)))
		in.Write(binary.LittleEndian.AppendUint32(header, uint32(v.Whole)))
		in.Write(v.Data)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), compile(t, "parse_pipe.c", sanitizers), tunnels...)
	cmd.Stdin, cmd.Stderr = &in, &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var results []parsed
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		var p parsed
		if _, err := fmt.Sscan(s.Text(), &p.reason, &p.hash, &p.datagram, &p.fragment, &p.mayConcern, &p.l4, &p.room); err != nil {
			t.Fatal(err)
		}
		results = append(results, p)
	}
	if len(results) != len(views) {
		t.Fatalf("%d results for %d frames", len(results), len(views))
	}
	return results
}

func check(t *testing.T, v oracle.View, got parsed) {
	t.Helper()
	flow, reason := oracle.Classify(v, table.Tunnels)
	if want := string(reason); want != string(oracle.Reasons[got.reason]) {
		t.Errorf("%d of %d bytes %x: got %s, want %s", len(v.Data), v.Whole, v.Data, oracle.Reasons[got.reason], want)
		return
	}
	if reason != oracle.OK {
		return
	}
	if got.fragment != flow.Fragment {
		t.Errorf("%x: fragment %d, want %d", v.Data, got.fragment, flow.Fragment)
	}
	if got.l4 != flow.L4 || v.Whole > 0 && got.room != flow.Room {
		t.Errorf("%x: %d bytes from %d on, want %d from %d on", v.Data, got.room, got.l4, flow.Room, flow.L4)
	}
	// The key of classify.h.
	if want := flow.Hash(1, 2); got.hash != want {
		t.Errorf("%x: hash %x, want %x of %+v", v.Data, got.hash, want, flow)
	}
	if want := flow.DatagramHash(1, 2); got.datagram != want {
		t.Errorf("%x: datagram %x, want %x of %+v", v.Data, got.datagram, want, flow)
	}
}

func whole(frame []byte) oracle.View { return oracle.View{Data: frame, Whole: len(frame)} }

func TestTheParserAgreesWithTheTable(t *testing.T) {
	cases := table.Cases()
	var views []oracle.View
	for _, c := range cases {
		views = append(views, whole(c.Frame))
	}
	for i, got := range parse(t, views) {
		want := cases[i].Want
		if want == oracle.FragmentUntracked {
			want = oracle.OK // memory is not the parser's
		}
		if oracle.Reasons[got.reason] != want {
			t.Errorf("%s: got %s, want %s", cases[i].Name, oracle.Reasons[got.reason], want)
		}
		check(t, views[i], got)
	}
}

// Every view that a hook can have of a frame: all of it, its head only, or the
// head of a super-packet; cut at every length, and changed at random.
func TestTheParserAgreesWithASlowOne(t *testing.T) {
	rnd, _ := seeded(t)
	cases := table.Cases()
	var views []oracle.View
	for _, c := range cases {
		for n := range min(len(c.Frame), 200) {
			views = append(views, whole(c.Frame[:n]), oracle.View{Data: c.Frame[:n], Whole: len(c.Frame)})
		}
	}
	for range 30_000 {
		f := table.Mutate(rnd, cases[rnd.IntN(len(cases))].Frame)
		v := whole(f)
		switch rnd.IntN(4) {
		case 0:
			v.Whole = 0
		case 1:
			v.Data = f[:rnd.IntN(len(f)+1)]
		}
		views = append(views, v)
	}
	for i, got := range parse(t, views) {
		check(t, views[i], got)
	}
}

// writeCorpus puts the table's frames into a folder, as input for the fuzzer.
func writeCorpus(t *testing.T, dir string) {
	t.Helper()
	for i, c := range table.Cases() {
		in := append([]byte{byte(i), byte(len(c.Frame) / 2)}, c.Frame...)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("table-%d", i)), in, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// fuzz.sh has its corpus from here.
func TestTheCorpusIsWritten(t *testing.T) {
	dir := os.Getenv("PARSER_CORPUS")
	if dir == "" {
		dir = t.TempDir()
	}
	writeCorpus(t, dir)
}

// A short run of the fuzzer; fuzz.sh runs it for as long as one likes.
func TestTheParserStandsTheFuzzer(t *testing.T) {
	_, seed := seeded(t)
	bin := compile(t, "fuzz_parse.c", "-fsanitize=address,undefined,fuzzer")
	corpus := t.TempDir()
	writeCorpus(t, corpus)
	run(t, bin, "-runs=200000", "-max_len=700", fmt.Sprintf("-seed=%d", uint32(seed)), "-artifact_prefix="+corpus+"/", corpus)
}
