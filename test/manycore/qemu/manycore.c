/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Many cores in guest time: one thread runs all vCPUs, and each has a clock of its own, which counts
 * the instructions that it has executed and those that it was charged with. Of the vCPUs that are
 * not idle the one whose clock is lowest runs, until it is a quantum ahead of the next one. The
 * machine's clock (timers_state.qemu_icount) is the lowest of theirs: timers fire when it has come
 * to them. When all are idle, it jumps to the next timer. An idle vCPU wakes at the time of what
 * wakes it.
 *
 * How fast the host is, and what else runs there, shows nowhere in the guest.
 */
#include "qemu/osdep.h"
#include "qemu/main-loop.h"
#include "qemu/qemu-plugin.h"
#include "qemu/seqlock.h"
#include "qemu/timer.h"
#include "exec/cpu-common.h"
#include "system/cpu-timers.h"
#include "system/cpu-timers-internal.h"
#include "system/cpus.h"
#include "system/manycore.h"
#include "system/runstate.h"
#include "tcg-accel-ops.h"

#define MANYCORE_MAX 64

int64_t manycore_quantum;
int64_t manycore_rate = 1;
int64_t manycore_pause;

/* What an interrupt of another vCPU costs the sender, and how long it takes to wake an idle one. */
static int64_t ipi_send, ipi_wake;

/* The latest time that any vCPU has read. */
static int64_t latest;

static struct {
    int64_t clock;
    int64_t wake;    /* idle: when it wakes; 0: not known */
    int64_t began;   /* insns when its slice began */
    bool idle;
    /* For the report: */
    int64_t insns, charged, ipis, slices, wakes;
} vcpus[MANYCORE_MAX];

static int64_t setting(const char *name, int64_t usual, int64_t least)
{
    const char *text = getenv(name);
    char *end;
    int64_t n;

    if (!text) {
        return usual;
    }
    n = strtoll(text, &end, 10);
    if (end == text || *end || n < least) {
        fprintf(stderr, "manycore: %s is %s, and not a number of at least %" PRId64 "\n", name, text, least);
        exit(1);
    }
    return n;
}

static void __attribute__((constructor)) settings(void)
{
    manycore_quantum = setting("MANYCORE_QUANTUM", 0, 0);
    manycore_rate = setting("MANYCORE_RATE", 1, 1);
    manycore_pause = setting("MANYCORE_PAUSE", 0, 0);
    ipi_send = setting("MANYCORE_IPI_SEND", 0, 0);
    ipi_wake = setting("MANYCORE_IPI_WAKE", 0, 0);
}

void manycore_advance(CPUState *cpu, int64_t insns)
{
    vcpus[cpu->cpu_index].clock += insns;
    vcpus[cpu->cpu_index].insns += insns;
}

void manycore_charge(CPUState *cpu, int64_t insns)
{
    vcpus[cpu->cpu_index].clock += insns;
    vcpus[cpu->cpu_index].charged += insns;
}

void qemu_plugin_manycore_charge(unsigned int vcpu_index, int64_t insns)
{
    manycore_charge(qemu_get_cpu(vcpu_index), insns);
}

/*
 * One that reads the clock later, in the order in which all is executed, must not read less: a
 * program that compares times of two cores would see effects before their causes.
 */
int64_t manycore_read(CPUState *cpu)
{
    latest = MAX(latest, vcpus[cpu->cpu_index].clock);
    return latest;
}

/* A slice ends before a block that is too large for it, unless it has done nothing yet. */
int manycore_rest(CPUState *cpu, int block)
{
    return vcpus[cpu->cpu_index].insns == vcpus[cpu->cpu_index].began ? block : 0;
}

void manycore_interrupt(CPUState *cpu)
{
    int64_t now = qatomic_read(&timers_state.qemu_icount);
    CPUState *by = current_cpu;

    if (by && by->running && by != cpu) {
        icount_update(by);
        now = vcpus[by->cpu_index].clock + ipi_wake;
        vcpus[by->cpu_index].ipis++;
        manycore_charge(by, ipi_send);
    }
    if (vcpus[cpu->cpu_index].idle && (!vcpus[cpu->cpu_index].wake || now < vcpus[cpu->cpu_index].wake)) {
        vcpus[cpu->cpu_index].wake = now;
    }
}

static void set_clock(int64_t to)
{
    if (to > timers_state.qemu_icount) {
        qatomic_set(&timers_state.qemu_icount, to);
    }
}

/*
 * The vCPU that runs next, and for how many instructions. Without one: whether a timer has fired, so
 * that there may be one now.
 */
static CPUState *pick(int64_t *budget, bool *fired)
{
    CPUState *cpu, *best = NULL;
    int64_t lowest = INT64_MAX, next = INT64_MAX, timer = INT64_MAX, deadline;

    *fired = false;
    CPU_FOREACH(cpu) {
        typeof(vcpus[0]) *c = &vcpus[cpu->cpu_index];

        if (!cpu_can_run(cpu) || cpu_thread_is_idle(cpu)) {
            c->idle = true;
            continue;
        }
        if (c->idle) {
            c->idle = false;
            c->clock = MAX(c->clock, MAX(c->wake, timers_state.qemu_icount));
            c->wake = 0;
            c->wakes++;
        }
        if (c->clock < lowest) {
            next = lowest;
            lowest = c->clock;
            best = cpu;
        } else {
            next = MIN(next, c->clock);
        }
    }
    deadline = qemu_clock_deadline_ns_all(QEMU_CLOCK_VIRTUAL, QEMU_TIMER_ATTR_ALL);
    if (deadline >= 0) {
        timer = (icount_to_ns(timers_state.qemu_icount) + deadline) * manycore_rate;
        if (timer <= lowest) {
            set_clock(timer);
            qemu_clock_run_timers(QEMU_CLOCK_VIRTUAL);
            *fired = true;
            return NULL;
        }
    }
    if (best) {
        set_clock(lowest);
        next = MIN(next, timer);
        *budget = next == INT64_MAX ? manycore_quantum : next - lowest + manycore_quantum;
        *budget = MIN(*budget, UINT16_MAX); /* what the counter in generated code holds */
    }
    return best;
}

static void report(void)
{
    CPUState *cpu;

    CPU_FOREACH(cpu) {
        typeof(vcpus[0]) *c = &vcpus[cpu->cpu_index];

        fprintf(stderr, "manycore: vCPU %d clock %" PRId64 " instructions %" PRId64 " charged %" PRId64
                " interrupts sent %" PRId64 " slices %" PRId64 " wakes %" PRId64 "\n", cpu->cpu_index,
                c->clock, c->insns, c->charged, c->ipis, c->slices, c->wakes);
    }
}

void manycore_loop(void)
{
    CPUState *cpu;
    int64_t budget;
    bool fired;
    int r;

    CPU_FOREACH(cpu) {
        if (cpu->cpu_index >= MANYCORE_MAX) {
            fprintf(stderr, "manycore: more than %d vCPUs\n", MANYCORE_MAX);
            exit(1);
        }
    }
    atexit(report);
    current_cpu = first_cpu;
    while (1) {
        CPU_FOREACH(cpu) {
            if (cpu->stop || !cpu_work_list_empty(cpu) || cpu->thread_kicked) {
                qemu_wait_io_event_common(cpu);
            }
        }
        if (!runstate_is_running()) {
            qemu_cond_wait_bql(first_cpu->halt_cond);
            continue;
        }
        cpu = pick(&budget, &fired);
        if (!cpu) {
            if (fired) {
                /* All may be idle for long: other threads need the lock in between. */
                bql_unlock();
                bql_lock();
            } else {
                qemu_cond_wait_bql(first_cpu->halt_cond);
            }
            continue;
        }
        current_cpu = cpu;
        vcpus[cpu->cpu_index].slices++;
        vcpus[cpu->cpu_index].began = vcpus[cpu->cpu_index].insns;
        bql_unlock();
        cpu->icount_budget = budget;
        cpu->neg.icount_decr.u16.low = budget;
        r = tcg_cpu_exec(cpu);
        g_assert(r != EXCP_ATOMIC); /* which only vCPUs with threads of their own raise */
        icount_update(cpu);
        cpu->neg.icount_decr.u16.low = 0;
        cpu->icount_extra = 0;
        cpu->icount_budget = 0;
        bql_lock();
    }
}
