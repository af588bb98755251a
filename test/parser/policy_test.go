// SPDX-License-Identifier: Apache-2.0

package parser

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

func TestCandidatesDifferAndSpreadEvenly(t *testing.T) {
	run(t, compile(t, "check_pipeline.c", sanitizers))
}

func TestPrioritysPolicyWithAClockOfItsOwn(t *testing.T) {
	run(t, compile(t, "check_priority.c", sanitizers))
}

func TestElephantsAreSplitOverTheEmptiestLanes(t *testing.T) {
	run(t, compile(t, "check_split.c", sanitizers))
}

// Whatever the branches do, and the wire.
func TestTheMergeKeepsOrderAndHoldsNothingForEver(t *testing.T) {
	_, seed := seeded(t)
	run(t, compile(t, "check_merge.c", sanitizers), fmt.Sprint(seed))
}

// Nor changes, nor gives to another receiver.
func TestNoFrameIsExpressThatTheStackWouldDrop(t *testing.T) {
	_, seed := seeded(t)
	run(t, compile(t, "check_express.c", sanitizers), fmt.Sprint(seed))
}

func TestTheOrderGuardKnowsNothingBeforeItIsTrue(t *testing.T) {
	_, seed := seeded(t)
	run(t, compile(t, "check_order.c", sanitizers), fmt.Sprint(seed), "20")
}

func TestARingWithFramesNeverLooksEmpty(t *testing.T) {
	_, seed := seeded(t)
	run(t, compile(t, "check_ring.c", sanitizers, "-Ihost/stub", "-Wno-unknown-attributes", "-Wno-unused-parameter"), fmt.Sprint(seed))
}

// compileModel builds the model of the receive path, which has the tracepoint's
// program and the guard in it as the kernel gets them.
func compileModel(t *testing.T, flags ...string) string {
	t.Helper()
	return compile(t, "model_guard.c", append(flags, "-Ihost/stub",
		// What only a compiler for BPF knows, and what libbpf's macros leave unused.
		"-Wno-unknown-attributes", "-Wno-unused-parameter")...)
}

const modelPackets = "20000"

// modelSeeds is how often a model runs, each time with another seed. Two holes of the guard have shown in one run
// of 700 and in one of 3000.
func modelSeeds() int {
	if testing.Short() {
		return 4
	}
	return 200
}

// slowSeeds is how often those run whose lanes are never empty, 3 to 10 seconds each: the others take half a second. At
// full length the package takes some 20 minutes on two busy cores.
func slowSeeds() int { return max(1, modelSeeds()/20) }

// And each does, once it has left.
func TestNoFlowGoesOnInAnotherQueueBeforeItHasLeftTheOld(t *testing.T) {
	_, seed := seeded(t)
	bin := compileModel(t, sanitizers)
	for i := range uint64(modelSeeds()) {
		run(t, bin, fmt.Sprint(seed+i), modelPackets)
	}
}

// Nor where several NICs are polled on one core, each with packets in GRO.
func TestGROOfEveryNICOfACoreIsLookedAt(t *testing.T) {
	_, seed := seeded(t)
	bin := compileModel(t, sanitizers)
	for i := range uint64(modelSeeds()) {
		run(t, bin, fmt.Sprint(seed+i), modelPackets, "together")
	}
}

// A NAPI that is gone tells of nothing.
func TestAFreedNAPIHoldsNoFlowOnTheStockPath(t *testing.T) {
	_, seed := seeded(t)
	bin := compileModel(t, sanitizers)
	for i := range uint64(modelSeeds() / 4) {
		run(t, bin, fmt.Sprint(seed+i), modelPackets, "freed")
	}
}

// Nor does a slot wait for a core that let packets of it pass which never came to the tunnel's cell.
func TestWhatACoreDroppedHoldsNoFlowOnTheStockPath(t *testing.T) {
	_, seed := seeded(t)
	bin := compileModel(t, sanitizers)
	for i := range uint64(modelSeeds() / 4) {
		run(t, bin, fmt.Sprint(seed+i), modelPackets, "dropped")
	}
}

// In bounded time, however much comes: what a full lane would drop anyway is dropped for that.
func TestFlowsLeaveALaneThatIsFull(t *testing.T) {
	_, seed := seeded(t)
	bin := compileModel(t, sanitizers)
	for i := range uint64(modelSeeds() / 4) {
		run(t, bin, fmt.Sprint(seed+2*i), modelPackets, "flood", "tcx")
		run(t, bin, fmt.Sprint(seed+2*i+1), modelPackets, "flood", "xdp")
	}
}

// And a lane that is only never empty, for which nothing is dropped.
func TestFlowsLeaveALaneThatIsBusy(t *testing.T) {
	_, seed := seeded(t)
	bin := compileModel(t, sanitizers)
	for i := range uint64(slowSeeds()) {
		run(t, bin, fmt.Sprint(seed+2*i), modelPackets, "busy", "tcx")
		run(t, bin, fmt.Sprint(seed+2*i+1), modelPackets, "busy", "xdp")
	}
}

// For such a lane a core stands still, but not for long, and not while others do for it.
func TestACoreStandsStillForATwentiethOfTheTime(t *testing.T) {
	run(t, compileModel(t, sanitizers), "1", modelPackets, "waits")
}

// A pod's queue is the same with and without a lane that is the hook's own core.
func TestTheQueueOfAPodsOwnCoreHoldsItsHook(t *testing.T) {
	run(t, compileModel(t, sanitizers), "1", modelPackets, "own-lane")
}

// What is decided for a batch of a lane's thread goes for no other, also where nothing polls on its core.
func TestEachBatchOfALanesThreadIsDecidedFor(t *testing.T) {
	run(t, compileModel(t, sanitizers), "1", modelPackets, "batches")
}

// Also where its slot is that of a flow which comes to another core.
func TestFlowsThatShareASlotKeepTheirOrder(t *testing.T) {
	_, seed := seeded(t)
	bin := compileModel(t, sanitizers)
	for i := range uint64(2 * modelSeeds()) {
		run(t, bin, fmt.Sprint(seed+i), modelPackets, "share")
	}
}

// A slot whose flows come to two cores stays on the lane that one of them gave it.
func TestACoreUndoesNothingOfAnotherOne(t *testing.T) {
	_, seed := seeded(t)
	bin := compileModel(t, sanitizers)
	for i := range uint64(slowSeeds()) {
		run(t, bin, fmt.Sprint(seed+2*i), modelPackets, "helped", "share", "tcx")
		run(t, bin, fmt.Sprint(seed+2*i+1), modelPackets, "helped", "share", "xdp")
	}
}

// They leave it together, in bounded time, though both send all the time.
func TestFlowsThatShareASlotLeaveItsLane(t *testing.T) {
	_, seed := seeded(t)
	bin := compileModel(t, sanitizers)
	for i := range uint64(slowSeeds()) {
		for _, lane := range []string{"busy", "flood"} {
			run(t, bin, fmt.Sprint(seed+2*i), modelPackets, lane, "share", "tcx")
			run(t, bin, fmt.Sprint(seed+2*i+1), modelPackets, lane, "share", "xdp")
		}
	}
}

// Not blind: without the guard, the model finds flows in two queues, and packets
// that are delivered behind later ones.
func TestWithoutTheOrderGuardTheModelIsBroken(t *testing.T) {
	_, seed := seeded(t)
	bin := compileModel(t, "-DOL_MUTANT_NO_GUARD")
	broken, overtaken := 0, 0
	for i := range uint64(modelSeeds()) {
		args := []string{fmt.Sprint(seed + i), modelPackets}
		out, err := exec.CommandContext(t.Context(), bin, append(args, "order")...).CombinedOutput()
		var exit *exec.ExitError
		switch {
		case err == nil:
		case errors.As(err, &exit) && exit.ExitCode() == 1 && strings.Contains(string(out), "goes on in queue"):
			broken++
		default:
			t.Fatalf("seed %s: %v\n%s", args[0], err, out)
		}
		if !strings.Contains(run(t, bin, append(args, "count")...), "overtaken 0\n") {
			overtaken++
		}
	}
	// Not all: chance may leave a run with one lane, or nothing to steer.
	if broken < modelSeeds()/2 || overtaken == 0 {
		t.Errorf("of %d runs without a guard, %d were found broken and %d had packets overtaken", modelSeeds(), broken, overtaken)
	}
}
