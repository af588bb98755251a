/* SPDX-License-Identifier: Apache-2.0 */
/* bpf/parse.h put together as the programs do it, without maps. */
#ifndef CLASSIFY_H
#define CLASSIFY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parse.h"

struct tunnel {
	__u32 vni;
	__u16 port;
	__u8 kind;
};

/* What the parser made of a frame. All of it is comparable with memcmp(). */
struct result {
	enum ol_reason reason;
	__u32 vni;
	__u64 hash, datagram;
	struct ol_flow flow;
	__u8 may_concern;
};

static const struct tunnel *find_tunnel(const struct tunnel *tunnels, int nr, __u16 port, __u32 vni)
{
	int i;

	for (i = 0; i < nr; i++)
		if (tunnels[i].port == port && tunnels[i].vni == vni)
			return &tunnels[i];
	return NULL;
}

/* total: length of the whole frame, of which len bytes are at hand; 0: not to be judged. */
static void classify(const __u8 *data, size_t len, __u32 total, const struct tunnel *tunnels,
		     int nr, struct result *res)
{
	struct ol_cursor c = {.data = data, .end = data + len, .total = total};
	const struct tunnel *t;
	struct ol_outer outer = {0};
	__u32 inner;
	int i, ours = 0;

	memset(res, 0, sizeof(*res));
	res->reason = ol_parse_outer(&c, &outer, &res->may_concern);
	if (res->reason)
		return;
	res->reason = OL_NOT_OVERLAY;
	for (i = 0; i < nr; i++)
		ours |= tunnels[i].port == outer.port;
	if (!ours)
		return;
	res->reason = ol_parse_vni(&c, &outer, &res->vni);
	if (res->reason)
		return;
	t = find_tunnel(tunnels, nr, outer.port, res->vni);
	if (!t)
		t = find_tunnel(tunnels, nr, outer.port, OL_VNI_ANY);
	if (!t) {
		res->reason = OL_NOT_OVERLAY;
		return;
	}
	res->reason = ol_parse_tunnel(&c, &outer, t->kind, &inner);
	if (res->reason)
		return;
	res->reason = ol_parse_inner(&c, inner, res->vni, &res->flow);
	if (res->reason) {
		memset(&res->flow, 0, sizeof(res->flow));
		return;
	}
	res->hash = ol_flow_hash(&res->flow, 1, 2);
	res->datagram = ol_fragment_hash(&res->flow, 1, 2);
}

/* The same on a copy that ends where its memory ends, so that a read behind it is caught. */
static void classify_exact(const __u8 *data, size_t len, __u32 total, const struct tunnel *tunnels,
			   int nr, struct result *res)
{
	__u8 *copy = malloc(len ? len : 1);

	memcpy(copy, data, len);
	classify(copy, len, total, tunnels, nr, res);
	free(copy);
}

#endif
