// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func loop(n uint64)
TEXT ·loop(SB), NOSPLIT, $0-8
	MOVQ n+0(FP), AX
again:
	SUBQ $2, AX
	JNE  again
	RET
