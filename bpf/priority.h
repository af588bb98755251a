/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * PRISM's policy: which class does a flow belong to? The rules are a list of which
 * the first that fits wins, however many there are: rules that look at the same
 * fields have one shape, and one look-up finds the best of a shape. Inputs in,
 * decision out; no maps, no helpers.
 */
#ifndef OVERLANE_PRIORITY_H
#define OVERLANE_PRIORITY_H

#include "abi.h"
#include "parse.h"

/* The side's address, as words in network byte order. */
OL_INLINE void ol_flow_addr(const struct ol_flow *f, int dst, __u32 addr[4])
{
	const __u64 *a = &f->addr[f->v6 && dst ? 2 : 0];

	if (!f->v6) {
		addr[0] = dst ? (__u32)a[0] : (__u32)(a[0] >> 32);
		addr[1] = addr[2] = addr[3] = 0;
		return;
	}
	addr[0] = a[0] >> 32;
	addr[1] = a[0];
	addr[2] = a[1] >> 32;
	addr[3] = a[1];
}

/* What a shape picks from a flow. Returns 0 if no rule of it can fit. */
OL_INLINE int ol_rule_key_of(const struct ol_flow *f, const struct ol_shape *s,
			     struct ol_rule_key *k)
{
	__u32 addr[4] = {};
	int i;

	k->proto = s->fields & OL_FIELD_PROTO ? f->proto : 0;
	k->dscp = s->fields & OL_FIELD_DSCP ? f->dscp : 0;
	k->vni = s->fields & OL_FIELD_VNI ? (__u32)f->tail & 0xffffff : 0;
	k->port = 0;
	if (s->fields & (OL_FIELD_SRC_PORT | OL_FIELD_DST_PORT)) {
		__u32 ports = f->tail >> 32;

		if (!ports)
			return 0;
		/* As they stand in the packet: the source port first. */
		k->port = s->fields & OL_FIELD_DST_PORT ? ports >> 16 : ports & 0xffff;
	}
	if (s->fields & (OL_FIELD_SRC_ADDR | OL_FIELD_DST_ADDR)) {
		if (s->v6 != f->v6)
			return 0;
		ol_flow_addr(f, !!(s->fields & OL_FIELD_DST_ADDR), addr);
	}
	for (i = 0; i < 4; i++)
		k->addr[i] = addr[i] & s->mask[i];
	return 1;
}

#endif
