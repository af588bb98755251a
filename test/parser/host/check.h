/* SPDX-License-Identifier: Apache-2.0 */
/* Small things for the checking programs: random numbers and a failing assertion. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t rnd_state = 1;

/* splitmix64 */
static uint64_t rnd(void)
{
	uint64_t z = (rnd_state += 0x9e3779b97f4a7c15ULL);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

/* A number below n. */
static uint64_t below(uint64_t n)
{
	return rnd() % n;
}

static int one_in(uint64_t n)
{
	return below(n) == 0;
}

#define FAIL(...)                             \
	do {                                  \
		fprintf(stderr, __VA_ARGS__); \
		fprintf(stderr, "\n");        \
		exit(1);                      \
	} while (0)

#define MUST(cond, ...)                    \
	do {                               \
		if (!(cond))               \
			FAIL(__VA_ARGS__); \
	} while (0)

#endif
