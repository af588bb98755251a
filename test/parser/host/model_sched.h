/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cores as coroutines: one runs at a time, and at every point where the code
 * under test reads or writes what others see, chance may let another go on, make
 * this one sleep, or take it off the machine for long. Time is counted, not
 * measured.
 */
#ifndef MODEL_SCHED_H
#define MODEL_SCHED_H

#include <string.h>
#include <ucontext.h>

#include "check.h"

#define MAX_CORES 4
#define STACK (256 * 1024)

struct coroutine {
	ucontext_t ctx;
	char stack[STACK];
	uint64_t wake; /* does not run before */
	int64_t skew;  /* of its clock */
	int ended;
};

static struct coroutine coroutines[MAX_CORES];
static ucontext_t scheduler;
static int nr_cores, this_core;
static uint64_t now_ns = 1000000000;

/* How wild it is; chosen for each run. */
static struct {
	uint64_t yield;	    /* one step in so many lets others go on */
	uint64_t stall;	    /* one step in so many takes the core away ... */
	uint64_t stall_max; /* ... for up to so many ns */
} chance;

static void core_main(int core);

static void let_others(void)
{
	swapcontext(&coroutines[this_core].ctx, &scheduler);
}

static void sleep_for(uint64_t ns)
{
	coroutines[this_core].wake = now_ns + ns;
	let_others();
}

void model_step(void)
{
	now_ns += 2 + below(40);
	if (one_in(chance.stall))
		sleep_for(below(chance.stall_max));
	else if (one_in(chance.yield))
		let_others();
}

void model_pause(void)
{
	sleep_for(1000);
}

unsigned int model_this_cpu(void)
{
	return this_core;
}

/* Each core's clock is off by a bit, and may step back by less. */
__u64 model_clock(void)
{
	uint64_t t = now_ns + coroutines[this_core].skew + below(300);

	model_step();
	return t;
}

static void core_entry(int core)
{
	core_main(core);
	coroutines[core].ended = 1;
	let_others();
}

/* Runs all cores until `stop` says so, or all have ended. */
static void run_cores(int (*stop)(void))
{
	int i, ready[MAX_CORES], nr;

	while (!stop()) {
		uint64_t first = UINT64_MAX;

		for (i = nr = 0; i < nr_cores; i++) {
			if (coroutines[i].ended)
				continue;
			if (coroutines[i].wake <= now_ns)
				ready[nr++] = i;
			else if (coroutines[i].wake < first)
				first = coroutines[i].wake;
		}
		if (!nr) {
			MUST(first != UINT64_MAX, "all cores ended");
			now_ns = first;
			continue;
		}
		this_core = ready[below(nr)];
		swapcontext(&scheduler, &coroutines[this_core].ctx);
	}
}

static void start_cores(int nr)
{
	int i;

	nr_cores = nr;
	for (i = 0; i < nr; i++) {
		struct coroutine *c = &coroutines[i];

		getcontext(&c->ctx);
		c->ctx.uc_stack.ss_sp = c->stack;
		c->ctx.uc_stack.ss_size = sizeof(c->stack);
		makecontext(&c->ctx, (void (*)(void))core_entry, 1, i);
		c->skew = below(1500);
	}
}

#endif
