// SPDX-License-Identifier: Apache-2.0

package manycore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/overlane/overlane/internal/lab/report"
)

// Gate is something that must be so before figures of a machine are worth anything.
type Gate struct {
	Name string `json:"name"`
	// Low and High bound what Got may be.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	Got  float64 `json:"got"`
}

// OK reports whether it is passed.
func (g Gate) OK() bool { return g.Got >= g.Low && g.Got <= g.High }

func near(name string, got, want, share float64) Gate {
	return Gate{Name: name, Low: want * (1 - share), High: want * (1 + share), Got: got}
}

// Gates are those of one machine.
type Gates []Gate

// Err says which are not passed.
func (gs Gates) Err() error {
	var errs []error
	for _, g := range gs {
		if !g.OK() {
			errs = append(errs, fmt.Errorf("%s is %.4g, and %.4g to %.4g is asked", g.Name, g.Got, g.Low, g.High))
		}
	}
	if len(gs) == 0 {
		return errors.New("no gate was tried")
	}
	return errors.Join(errs...)
}

func (gs Gates) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "gate\tgot\tasked\t")
	for _, g := range gs {
		verdict := "ok"
		if !g.OK() {
			verdict = "FAILED"
		}
		fmt.Fprintf(w, "%s\t%.4g\t%.4g to %.4g\t%s\n", g.Name, g.Got, g.Low, g.High, verdict)
	}
	_ = w.Flush() // to memory
	return b.String()
}

// What cores beside one another may differ from as many of one, and results from those with a quantum
// of a tenth. A wakeup depends on which core has had a lock's line last, and so on how finely cores take turns.
const (
	scaling    = 0.01
	invariance = 0.02
	waking     = 0.05 // where lines cost something
)

// spun is what Command spin of a folder below prints.
type spun struct {
	Rounds   map[int][]float64
	PingPong float64
}

// perRound is how many instructions it takes for a round, beside what it takes to read the clock.
const perRound = 100_000

// row is the gates' row of the lab. In less than a second a reading of counters that comes late, when the
// lab waits for its core, is seen: the plain overlay made 63 and 88 thousand packets in 0.3 s.
var row = []string{"run", "udp-one", "--rounds", "1", "--seconds", "1", "--json"}

// native are the ratios to the plain overlay on two real cores: the lowest and the highest end of the
// intervals of the series in docs/measurements-log.md ("One UDP flow of 64 bytes"). Those are of 25 rounds, a gate is of one:
// by scatter, runs of one machine differ from their middle (rps from 0.91 to 0.97, host by 0.2 %).
var native = []struct {
	variant            string
	low, high, scatter float64
}{
	{"host", 2.62, 2.94, 0},
	{"rps", 0.92, 0.97, 0.03},
}

// taken is the largest share of the offer that the host network may take: a row that takes all of it
// shows the generator.
const taken = 0.99

var offered = regexp.MustCompile(`offered: ([0-9.]+)`)

// offer is what the lab says that it offers to every variant, in kpps.
func offer(output string) (float64, error) {
	m := offered.FindStringSubmatch(output)
	if m == nil {
		return 0, fmt.Errorf("the lab does not say what it offers:\n%s", output)
	}
	return strconv.ParseFloat(m[1], 64)
}

// kpps of each variant, from the lab's JSON.
func kpps(output string) (map[string]float64, error) {
	// What the lab says of its rounds comes before the JSON, which is one line.
	text := strings.TrimSpace(output)
	var r report.Result
	if err := json.Unmarshal([]byte(text[strings.LastIndex(text, "\n")+1:]), &r); err != nil {
		return nil, fmt.Errorf("result of the lab: %w\n%s", err, output)
	}
	got := map[string]float64{}
	for _, v := range r.Variants {
		got[v.Name] = float64(v.Metrics["kpps"].Median)
	}
	return got, nil
}

// run boots a machine for one gate, in a folder below dir, and returns what each command said.
func (b *Bench) run(ctx context.Context, m Machine, dir, name string, say func(string, ...any), commands ...Command) ([]string, error) {
	dir = filepath.Join(dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	r, err := b.Run(ctx, m, dir, commands...)
	if err != nil {
		return nil, fmt.Errorf("%s (%s): %w", m, dir, err)
	}
	say("%s: %s", m, r.Cost())
	var texts []string
	for _, o := range r.Outcomes {
		texts = append(texts, o.Output)
	}
	return texts, nil
}

func rowOf(variants string) Command {
	return Command{Name: "overlane-lab", Args: append(slices.Clone(row), "--variants", variants)}
}

// compared is the variant of the gates' row that is compared between quanta. What RPS makes differs by 6 % between
// runs of one machine, whatever the quantum.
const compared = "overlay"

// Even tries how the cores of a machine scale, and whether it matters how finely they take turns.
func (b *Bench) Even(ctx context.Context, m Machine, dir string, say func(string, ...any)) (Gates, error) {
	commands := []Command{{Name: "spin"}}
	if m.CPUs > 1 {
		commands = append(commands, rowOf(compared))
	}
	try := func(name string, m Machine) (s spun, k map[string]float64, err error) {
		said, err := b.run(ctx, m, dir, name, say, commands...)
		if err != nil {
			return s, nil, err
		}
		if err := json.Unmarshal([]byte(said[0]), &s); err != nil {
			return s, nil, fmt.Errorf("spin: %w: %s", err, said[0])
		}
		if len(said) > 1 {
			k, err = kpps(said[1])
		}
		return s, k, err
	}
	spun, coarse, err := try("as-it-is", m)
	if err != nil {
		return nil, err
	}
	gs := spun.gates(m.Rate)
	if m.CPUs == 1 {
		return gs, nil
	}
	small := m
	small.Quantum = max(m.Quantum/10, 1)
	finely, fine, err := try("small-quantum", small)
	if err != nil {
		return gs, err
	}
	turns := fmt.Sprintf("quantum %d to %d", small.Quantum, m.Quantum)
	wake := invariance
	if m.Lines != (Lines{}) {
		wake = waking
	}
	return append(gs, near("wakeup there and back, "+turns, finely.PingPong/spun.PingPong, 1, wake),
		near("udp-one "+compared+", "+turns, fine[compared]/coarse[compared], 1, invariance)), nil
}

// Pair is a machine of two such cores.
func (m Machine) Pair() Machine {
	m.CPUs, m.Nodes, m.Threads = 2, 0, 0
	return m
}

// Native tries whether a pair of cores does what two real ones do.
func (b *Bench) Native(ctx context.Context, m Machine, dir string, say func(string, ...any)) (Gates, error) {
	said, err := b.run(ctx, m, dir, "pair", say, rowOf("overlay,host,rps"))
	if err != nil {
		return nil, err
	}
	k, err1 := kpps(said[0])
	most, err2 := offer(said[0])
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return like(k, most), nil
}

// like compares two cores, that are offered so much, with real ones.
func like(k map[string]float64, offer float64) (gs Gates) {
	gs = append(gs, Gate{Name: "what the host network takes of the offer", High: taken, Got: k["host"] / offer})
	for _, n := range native {
		gs = append(gs, Gate{Name: "udp-one " + n.variant + " to overlay on two cores, as on real ones", Low: n.low * (1 - n.scatter), High: n.high * (1 + n.scatter), Got: k[n.variant] / k["overlay"]})
	}
	return gs
}

// gates compare cores that spin.
func (s spun) gates(rate int) (gs Gates) {
	one := s.Rounds[1]
	if len(one) != 1 {
		return Gates{{Name: "cores that span alone", Low: 1, High: 1}}
	}
	gs = append(gs, near("rounds of one core, to what its rate says", one[0]/(float64(rate)*1e9/perRound), 1, scaling))
	counts := []int{}
	for k := range s.Rounds {
		counts = append(counts, k)
	}
	slices.Sort(counts)
	for _, k := range counts {
		if k == 1 {
			continue
		}
		sum, worst := 0.0, math.Inf(1)
		for _, r := range s.Rounds[k] {
			sum += r
			worst = min(worst, r)
		}
		gs = append(gs, near(fmt.Sprintf("%d cores, to one", k), sum/one[0], float64(k), scaling),
			near(fmt.Sprintf("the slowest of %d cores, to one", k), worst/one[0], 1, scaling))
	}
	return gs
}
