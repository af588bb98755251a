// SPDX-License-Identifier: Apache-2.0
/* Properties of bpf/pipeline.h, for every slot, stage and number of lanes. */
#include "check.h"
#include "pipeline.h"

/* Does each of n lanes have its share of total, give or take? */
static void check_even(const __u32 *count, __u32 n, __u32 total, const char *what)
{
	double want = (double)total / n, worst = 0;
	__u32 i;

	for (i = 0; i < n; i++) {
		double off = count[i] > want ? count[i] - want : want - count[i];

		/* Random throws lie within 5 standard deviations. */
		MUST(off * off <= 16 * want + 4, "%s: lane %u of %u has %u of %u", what, i, n,
		     count[i], total);
		worst = off / want > worst ? off / want : worst;
	}
}

static void check_candidates(void)
{
	static __u32 first[OL_NR_STAGES][OL_MAX_LANES], second[OL_MAX_LANES];
	static __u32 pairs[OL_MAX_LANES], across[OL_MAX_LANES];
	__u32 nr, stage, slot, c1, c2, d1, d2, i;

	for (nr = 1; nr <= OL_MAX_LANES; nr++) {
		for (stage = 0; stage < OL_NR_STAGES; stage++) {
			for (i = 0; i < nr; i++)
				first[stage][i] = second[i] = pairs[i] = across[i] = 0;
			for (slot = 0; slot < OL_SLOTS; slot++) {
				ol_candidates(slot, stage, nr, &c1, &c2);
				MUST(c1 < nr && c2 < nr,
				     "slot %u stage %u: candidates %u, %u of %u", slot, stage, c1,
				     c2, nr);
				MUST(nr == 1 || c1 != c2, "slot %u stage %u: twice lane %u of %u",
				     slot, stage, c1, nr);
				first[stage][c1]++;
				second[c2]++;
				pairs[(c2 + nr - c1) % nr]++;
				/* The next stage's choice must not go along with this one's. */
				ol_candidates(slot, (stage + 1) % OL_NR_STAGES, nr, &d1, &d2);
				across[(d1 + nr - c1) % nr]++;
			}
			check_even(first[stage], nr, OL_SLOTS, "first candidate");
			check_even(second, nr, OL_SLOTS, "second candidate");
			check_even(across, nr, OL_SLOTS, "distance to the next stage's");
			if (nr > 1)
				check_even(pairs + 1, nr - 1, OL_SLOTS, "distance of the two");
		}
	}
}

static void check_less_loaded(void)
{
	static const __u32 queues[] = {0,  1,	 31,	     32,	 33,
				       64, 1000, 0x7fffffff, 0xfffffff0, 0xffffffff};
	static const __u32 busys[] = {0, 1, 199, 200, 201, 500, 999, 1000};
	static const __u32 slacks[] = {0, 1, 32, 1000, 0xffffffff};
	unsigned int i, j, k, l, m;

#define EACH(i, of) (i = 0; i < sizeof(of) / sizeof(of[0]); i++)
	for
		EACH(i, queues)
		for
			EACH(j, queues)
			for
				EACH(k, busys)
				for
					EACH(l, busys)
					for
						EACH(m, slacks)
						{
							struct ol_load a = {queues[i], busys[k]};
							struct ol_load b = {queues[j], busys[l]};
							__u64 slack = slacks[m];
							int ab = ol_less_loaded(&a, &b, slack);
							int ba = ol_less_loaded(&b, &a, slack);
							int close = a.queue <= b.queue + slack &&
								    b.queue <= a.queue + slack;

							MUST(!(ab && ba),
							     "each is less loaded than the other");
							MUST(close || ab == (a.queue < b.queue),
							     "queues %u and %u, slack %llu: %d",
							     a.queue, b.queue, slack, ab);
							MUST(!close ||
								     ab == (a.busy + 200 < b.busy),
							     "busy %u and %u: %d", a.busy, b.busy,
							     ab);
						}
}

int main(void)
{
	check_candidates();
	check_less_loaded();
	return 0;
}
