/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Tunnel headers over UDP. An encapsulation is a function here that reads its header, and a case
 * in ol_encap; its kind in abi.h; and its device in internal/encap.
 */
#ifndef OVERLANE_ENCAP_H
#define OVERLANE_ENCAP_H

#include "wire.h"

/* What any of them needs at least; the VNI is at the same place in all. */
#define OL_ENCAP_HLEN 8

/* Where the inner frame begins behind IPv4 and a tunnel header, neither with options. */
#define OL_INNER_PLAIN (OL_ETH_HLEN + 20 + 8 + OL_ENCAP_HLEN)

OL_INLINE __u32 ol_encap_vni(const __u8 *th)
{
	return ol_be32(th + 4) >> 8;
}

/* Each returns the header's length, or 0: the packet is not for overlane to judge. */

/* RFC 7348. Only the VNI flag: no GBP, GPE or remote checksum offload. */
OL_INLINE __u32 ol_vxlan(const __u8 *th)
{
	return th[0] != 0x08 || th[1] | th[2] | th[3] | th[7] ? 0 : OL_ENCAP_HLEN;
}

/* RFC 8926. Version 0, no control (OAM) packet, no critical option, Ethernet inside. */
OL_INLINE __u32 ol_geneve(const __u8 *th)
{
	if (th[0] >> 6 || th[1] & 0xc0 || ol_be16(th + 2) != OL_ETH_P_TEB)
		return 0;
	return OL_ENCAP_HLEN + (th[0] & 0x3f) * 4;
}

OL_INLINE __u32 ol_encap(__u8 kind, const __u8 *th)
{
	switch (kind) {
	case OL_KIND_VXLAN:
		return ol_vxlan(th);
	case OL_KIND_GENEVE:
		return ol_geneve(th);
	default:
		return 0;
	}
}

#endif
