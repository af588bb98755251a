/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#ifndef OVERLANE_HEAD_H
#define OVERLANE_HEAD_H

/*
 * Packets of a flow come in runs. The next of a run is told by a few words of its head, which are
 * compared with those of the frame before: of the commonest kind, TCP or UDP over IPv4 without
 * options, alone or in a tunnel over the same. Which of their bits count is each hook's.
 */
#include "parse.h"

#define OL_HEAD_WORDS 11
#define OL_HEAD_TUNNEL 88 /* bytes up to and including the inner ports */

struct ol_head {
	__u64 word[OL_HEAD_WORDS];
	__u32 words; /* that are kept; 0: none to compare with */
	__u32 pad;
};

/* Are both heads those of IPv4 without options, in a tunnel without options? */
OL_INLINE int ol_head_in_tunnel(const struct ol_cursor *c, __u32 inner)
{
	const __u8 *d = c->data;

	return inner == OL_INNER_PLAIN && OL_FITS(c, d, OL_HEAD_TUNNEL) &&
	       ol_be16(d + 12) == OL_ETH_P_IP && d[14] == 0x45 && ol_be16(d + 62) == OL_ETH_P_IP &&
	       d[64] == 0x45;
}

/* Keeps the first words, for which there is room in the frame. */
OL_INLINE void ol_head_keep(const __u8 *data, struct ol_head *h, int words)
{
	int i;

#pragma unroll
	for (i = 0; i < words; i++)
		__builtin_memcpy(&h->word[i], data + 8 * i, 8);
	h->words = words;
}

OL_INLINE int ol_head_differs(const __u8 *data, const struct ol_head *h, const __u64 *mask,
			      int words)
{
	__u64 diff = 0, w;
	int i;

#pragma unroll
	for (i = 0; i < words; i++) {
		if (!mask[i])
			continue;
		__builtin_memcpy(&w, data + 8 * i, 8);
		diff |= (w ^ h->word[i]) & mask[i];
	}
	return diff != 0;
}

#endif
