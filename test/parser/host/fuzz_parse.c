// SPDX-License-Identifier: Apache-2.0
/*
 * Fuzz target (libFuzzer): two bytes that choose how the frame is seen, then the
 * frame. Whatever it holds:
 *  - nothing behind the frame is read, and nothing there changes the result;
 *  - what can be reached of a frame decides whether it is understood, never as
 *    what: a shorter view gives the same flow or none;
 *  - padding behind a frame that is understood changes nothing.
 */
#include "classify.h"

static const struct tunnel tunnels[] = {
	{.vni = OL_VNI_ANY, .port = 4789, .kind = OL_KIND_VXLAN},
	{.vni = OL_VNI_ANY, .port = 6081, .kind = OL_KIND_GENEVE},
	{.vni = 42, .port = 8472, .kind = OL_KIND_VXLAN},
};
#define NR ((int)(sizeof(tunnels) / sizeof(tunnels[0])))

static void must(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "broken: %s\n", what);
	abort();
}

static int same(const struct result *a, const struct result *b)
{
	return !memcmp(a, b, sizeof(*a));
}

static void check_behind(const __u8 *frame, size_t len, __u32 total, const struct result *want)
{
	__u8 *longer = malloc(len + 512);
	struct result got;
	int fill;

	memcpy(longer, frame, len);
	for (fill = 0; fill < 256; fill += 0x45) {
		memset(longer + len, fill, 512);
		classify(longer, len, total, tunnels, NR, &got);
		must(same(&got, want), "bytes behind the frame change the result");
	}
	free(longer);
}

static void check_shorter(const __u8 *frame, size_t len, size_t cut, __u32 total,
			  const struct result *want)
{
	struct result got;

	if (cut > len)
		return;
	classify_exact(frame, cut, total, tunnels, NR, &got);
	if (same(&got, want))
		return;
	must(got.reason == OL_SHORT, "less of the same frame is understood otherwise");
}

int LLVMFuzzerTestOneInput(const uint8_t *in, size_t len)
{
	struct result res, padded;
	const __u8 *frame;
	__u32 total;
	__u8 mode;

	if (len < 2)
		return 0;
	mode = in[0];
	frame = in + 2;
	len -= 2;
	total = (mode & 3) == 0 ? 0 : (mode & 3) == 1 ? len + (mode >> 2) : len;

	classify_exact(frame, len, total, tunnels, NR, &res);
	must(res.reason < OL_NR_REASONS, "unknown reason");
	must(res.may_concern <= 1, "may_concern is no truth value");
	check_behind(frame, len, total, &res);
	if (res.reason)
		return 0;

	must(res.may_concern, "an overlay packet is of no concern");
	must(res.flow.fragment <= OL_FRAG_LATER, "unknown fragment");
	must(res.flow.fragment != OL_FRAG_LATER || !res.flow.ports, "a later fragment has ports");
	must(res.datagram != 0, "a datagram's name is 0");
	check_shorter(frame, len, in[1], total, &res);
	check_shorter(frame, len, in[1] + 256, total, &res);
	if (total) {
		classify_exact(frame, len, total + in[1], tunnels, NR, &padded);
		must(same(&padded, &res), "padding changes the result");
		classify_exact(frame, len, 0, tunnels, NR, &padded);
		/* Then one of 0 may stand for more than fits in there. */
		padded.flow.len = res.flow.len;
		must(same(&padded, &res), "what is right in all lengths is wrong without them");
	}
	return 0;
}
