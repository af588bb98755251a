/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Many cores in guest time, see manycore.c.
 */
#ifndef SYSTEM_MANYCORE_H
#define SYSTEM_MANYCORE_H

#include "hw/core/cpu.h"

/* Instructions that a vCPU may be ahead of the others; 0: all this is off. */
extern int64_t manycore_quantum;
/* Instructions for each nanosecond of guest time. */
extern int64_t manycore_rate;
/* What PAUSE costs a vCPU, in instructions. */
extern int64_t manycore_pause;

/* The loop of the one thread that runs all vCPUs; does not return. */
void manycore_loop(void);
/* A vCPU has executed instructions. */
void manycore_advance(CPUState *cpu, int64_t insns);
/* Time passes for a vCPU without instructions. */
void manycore_charge(CPUState *cpu, int64_t insns);
/* The time that a vCPU reads. */
int64_t manycore_read(CPUState *cpu);
/* What is left of a slice where the next block has more instructions than that. */
int manycore_rest(CPUState *cpu, int block);
/* A vCPU gets an interrupt. */
void manycore_interrupt(CPUState *cpu);

#endif
