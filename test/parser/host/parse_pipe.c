// SPDX-License-Identifier: Apache-2.0
/*
 * Reads frames, writes what the parser makes of them, a line each. Arguments:
 * tunnels as kind:port:vni. Input: length and whole length (32 bit, little
 * endian), then the bytes.
 */
#include "classify.h"

static int read_word(__u32 *w)
{
	__u8 b[4];

	if (fread(b, 1, 4, stdin) != 4)
		return 0;
	*w = b[0] | b[1] << 8 | b[2] << 16 | (__u32)b[3] << 24;
	return 1;
}

int main(int argc, char **argv)
{
	struct tunnel tunnels[16] = {0};
	__u8 frame[65536];
	struct result r;
	__u32 len, total;
	int i, nr = 0;

	for (i = 1; i < argc && nr < 16; i++) {
		unsigned int kind, port, vni;

		if (sscanf(argv[i], "%u:%u:%u", &kind, &port, &vni) != 3)
			return 2;
		tunnels[nr++] = (struct tunnel){.kind = kind, .port = port, .vni = vni};
	}
	while (read_word(&len) && read_word(&total)) {
		if (len > sizeof(frame) || fread(frame, 1, len, stdin) != len)
			return 2;
		classify_exact(frame, len, total, tunnels, nr, &r);
		printf("%d %llu %llu %u %u %u %u\n", r.reason, r.hash, r.datagram, r.flow.fragment,
		       r.may_concern, r.flow.l4, r.flow.len);
	}
	return 0;
}
