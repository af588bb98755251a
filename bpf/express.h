/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The express path: from the NIC straight to the pod's veth. What the stack would have done
 * with a frame on its way there it must not do differently, so whatever the stack would look at
 * is looked at here, and a frame that is not plain takes the full path.
 *
 * Inputs in, decision out; no maps, no helpers.
 */
#ifndef OVERLANE_EXPRESS_H
#define OVERLANE_EXPRESS_H

#include "abi.h"
#include "parse.h"
#include "head.h"

#define OL_ECN_NONE 0
#define OL_ECN_ECT1 1
#define OL_ECN_ECT0 2
#define OL_ECN_CE 3
#define OL_ECN_MASK 3

/* Ones' complement sums, of whole 16 bit words in the order of memory. */
OL_INLINE __u64 ol_sum16(const __u8 *p, __u32 len, __u64 sum)
{
	__u32 i;

	for (i = 0; i + 2 <= len; i += 2)
		sum += (__u16)(p[i] | p[i + 1] << 8);
	return sum;
}

OL_INLINE __u16 ol_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* A number as ol_sum16 would have read it. */
OL_INLINE __u16 ol_swap16(__u16 n)
{
	return (__u16)(n << 8 | n >> 8);
}

OL_INLINE int ol_same_mac(const __u8 *a, const __u8 *b)
{
	return ol_word(a) == ol_word(b) && a[4] == b[4] && a[5] == b[5];
}

/* Is an IPv4 header without options whole? */
OL_INLINE int ol_header_right(const __u8 *ip)
{
	return ol_fold(ol_sum16(ip, 20, 0)) == 0xffff;
}

/*
 * Would the tunnel leave the inner ECN bits as they are, and say nothing about them
 * (INET_ECN_decapsulate, RFC 6040)?
 */
OL_INLINE int ol_express_ecn(__u8 outer, __u8 inner)
{
	outer &= OL_ECN_MASK;
	inner &= OL_ECN_MASK;
	if (outer == OL_ECN_NONE)
		return 1;
	return outer != OL_ECN_CE && inner != OL_ECN_NONE &&
	       !(outer == OL_ECN_ECT1 && inner == OL_ECN_ECT0);
}

/*
 * The inner frame, at off. *sum becomes the sum of its Ethernet and IP headers and of what
 * follows them if the transport's checksum is right: then, with the pseudo header, that is
 * ~0. *unsummed: it has none. tos: of the outer header.
 */
OL_INLINE enum ol_express_unfit ol_express_inner(const struct ol_cursor *c, __u32 off,
						 const struct ol_express_tunnel *t, __u8 tos,
						 __u64 *sum, __u8 *unsummed)
{
	const __u8 *eth = c->data + off, *ip = eth + OL_ETH_HLEN, *l4;
	__u16 kind, len, inside;
	__u64 pseudo;
	__u8 proto, ecn;

	if (!OL_FITS(c, eth, OL_ETH_HLEN + 20))
		return OL_UNFIT_FRAME;
	/* A bridge that learns takes what is from the pod's own address for the pod that moved. */
	if (!ol_one_sender(eth + 6) || ol_same_mac(eth + 6, t->mac) || ol_same_mac(eth + 6, eth))
		return OL_UNFIT_FRAME;
	kind = ol_be16(eth + 12);
	if (kind == OL_ETH_P_IP) {
		proto = ip[9];
		ecn = ip[1];
		len = ol_be16(ip + 2);
		l4 = ip + 20;
		/* br_netfilter drops what has a wrong checksum (br_validate_ipv4). */
		if (ip[0] != 0x45 || len < 20 || ol_be16(ip + 6) & 0x3fff || !ol_header_right(ip))
			return OL_UNFIT_INNER;
		inside = len - 20;
		pseudo = ol_sum16(ip + 12, 8, 0);
		*sum = ol_sum16(eth, OL_ETH_HLEN + 20, *sum);
	} else if (kind == OL_ETH_P_IPV6) {
		if (!OL_FITS(c, ip, 40))
			return OL_UNFIT_INNER;
		proto = ip[6];
		ecn = ip[1] >> 4;
		inside = ol_be16(ip + 4);
		len = 40 + inside;
		l4 = ip + 40;
		if (ip[0] >> 4 != 6)
			return OL_UNFIT_INNER;
		pseudo = ol_sum16(ip + 8, 32, 0);
		*sum = ol_sum16(eth, OL_ETH_HLEN + 40, *sum);
	} else {
		return OL_UNFIT_FRAME;
	}
	if (!ol_express_ecn(tos, ecn))
		return OL_UNFIT_OUTER;
	/* Nothing behind the packet: it would be in the outer sum. */
	if (off + OL_ETH_HLEN + len != c->total)
		return OL_UNFIT_INNER;
	if (proto == OL_IPPROTO_UDP) {
		if (inside < 8 || !OL_FITS(c, l4, 8) || ol_be16(l4 + 4) != inside)
			return OL_UNFIT_INNER;
		*unsummed = !(l4[6] | l4[7]);
	} else if (proto == OL_IPPROTO_TCP) {
		if (inside < 20)
			return OL_UNFIT_INNER;
	} else {
		return OL_UNFIT_INNER;
	}
	pseudo += ol_swap16(inside) + ((__u64)proto << 8);
	*sum += (__u16)~ol_fold(pseudo);
	return OL_PLAIN;
}

/* What the stack would take for a martian, or for another host's. */
OL_INLINE int ol_express_outer4(const __u8 *ip, const struct ol_express_tunnel *t)
{
	return ip[12] != 0 && ip[12] != 127 && ip[12] < 224 && ol_word(ip + 16) == t->local[0] &&
	       ol_word(ip + 12) != t->local[0] &&
	       (!t->remote[0] || ol_word(ip + 12) == t->remote[0]);
}

/*
 * Would the stack hand this frame, of a tunnel of ours with the inner frame at `inner`, to the
 * tunnel, and that the inner frame on as it is? Total is the whole frame's length.
 *
 * An outer checksum is not added up over the payload: if the inner one is right, the headers
 * tell what the payload adds to it (as local checksum offload does it the other way round). If
 * only one of the two is wrong, they do not agree, and the frame takes the full path to what
 * drops it. If the payload is not what was sent, both are, and the pod drops the packet by the
 * inner one.
 */
OL_INLINE enum ol_express_unfit ol_express_plain(const struct ol_cursor *c, __u32 inner,
						 const struct ol_express_tunnel *t)
{
	const __u8 *eth = c->data, *ip = eth + OL_ETH_HLEN, *udp;
	enum ol_express_unfit r;
	__u8 unsummed = 0;
	__u64 sum = 0;
	__u16 len;

	if (!OL_FITS(c, eth, OL_ETH_HLEN + 20 + 16))
		return OL_UNFIT_OUTER;
	if (!ol_same_mac(eth, t->nic))
		return OL_UNFIT_NIC;
	if (t->version != 4 || ol_be16(eth + 12) != OL_ETH_P_IP || ip[0] != 0x45)
		return OL_UNFIT_OUTER;
	udp = ip + 20;
	len = ol_be16(udp + 4);
	if (!ol_express_outer4(ip, t) || OL_ETH_HLEN + ol_be16(ip + 2) != c->total ||
	    20 + len != ol_be16(ip + 2) || !ol_header_right(ip))
		return OL_UNFIT_OUTER;
	r = ol_express_inner(c, inner, t, ip[1], &sum, &unsummed);
	if (r)
		return r;
	if (!(udp[6] | udp[7]))
		return OL_PLAIN;
	if (unsummed)
		return OL_UNFIT_UNCHECKED;
	if (inner != OL_INNER_PLAIN)
		return OL_UNFIT_UNCHECKED; /* options of the tunnel */
	sum = ol_sum16(udp, 16, sum);
	sum = ol_sum16(ip + 12, 8, sum);
	sum += ol_swap16(len) + ((__u64)OL_IPPROTO_UDP << 8);
	return ol_fold(sum) == 0xffff ? OL_PLAIN : OL_UNFIT_UNCHECKED;
}

/*
 * A frame whose head is that of a plain frame before it, but for lengths, identifications and
 * checksums, is plain if these are as they should be. For IPv4 in VXLAN over IPv4 without an outer
 * UDP checksum.
 */
#define OL_RUN_HEAD 92 /* up to and including an inner UDP header */

#define OL_RUN_MASK                                                       \
	{                                                                 \
		~0ULL,                                                    \
		~0ULL,                                                    \
		0xffffffff00000000ULL, /* outer length, identification */ \
		0xffffffffffff0000ULL, /* outer checksum */               \
		0x0000ffffffffffffULL, /* outer UDP length */             \
		~0ULL,                                                    \
		~0ULL,                                                    \
		~0ULL,                                                    \
		0xffff00000000ffffULL, /* inner length, identification */ \
		0xffffffff0000ffffULL, /* inner checksum */               \
		~0ULL,                                                    \
	}

/* Keeps the head of a plain frame, if later ones may be compared with it. */
OL_INLINE int ol_run_begin(const struct ol_cursor *c, __u32 inner, struct ol_head *h)
{
	const __u8 *d = c->data;

	if (!ol_head_in_tunnel(c, inner) || d[40] | d[41])
		return 0;
	ol_head_keep(d, h, OL_HEAD_WORDS);
	return 1;
}

/* Is the frame plain, and of the flow of the one that was kept? Total is its whole length. */
OL_INLINE int ol_run_goes_on(const struct ol_cursor *c, const struct ol_head *h)
{
	const __u64 mask[OL_HEAD_WORDS] = OL_RUN_MASK;
	const __u8 *d = c->data;
	__u16 len, inner;

	if (!OL_FITS(c, d, OL_RUN_HEAD) || ol_head_differs(d, h, mask, OL_HEAD_WORDS))
		return 0;
	len = ol_be16(d + 16);
	inner = ol_be16(d + 66);
	if (OL_ETH_HLEN + len != c->total || 20 + ol_be16(d + 38) != len || 64 + inner != c->total)
		return 0;
	if (d[73] == OL_IPPROTO_UDP ? 20 + ol_be16(d + 88) != inner : inner < 40)
		return 0;
	return ol_header_right(d + OL_ETH_HLEN) && ol_header_right(d + 64);
}

#endif
