/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How numbers are in frames, and which of them name what. */
#ifndef OVERLANE_WIRE_H
#define OVERLANE_WIRE_H

#include "abi.h"

#ifdef HOST_TEST
#define OL_INLINE static inline __attribute__((always_inline))
#else
#define OL_INLINE static __always_inline
#endif

#define OL_ETH_P_IP 0x0800
#define OL_ETH_P_IPV6 0x86dd
#define OL_ETH_P_8021Q 0x8100
#define OL_ETH_P_8021AD 0x88a8
#define OL_ETH_P_TEB 0x6558

#define OL_IPPROTO_TCP 6
#define OL_IPPROTO_UDP 17
#define OL_IPPROTO_SCTP 132
#define OL_IPPROTO_FRAGMENT 44

#define OL_ETH_HLEN 14

OL_INLINE __u16 ol_be16(const __u8 *p)
{
	return (__u16)(p[0] << 8 | p[1]);
}

OL_INLINE __u32 ol_be32(const __u8 *p)
{
	return (__u32)p[0] << 24 | (__u32)p[1] << 16 | (__u32)p[2] << 8 | p[3];
}

#endif
