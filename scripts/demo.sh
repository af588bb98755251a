#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# One flow over a VXLAN overlay, five ways: as the kernel does it, with the
# usual advice (RPS), with overlane's mechanisms. In network namespaces of its own; nothing
# of this machine's network is touched. Some 4 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

[ "$(uname -s)" = Linux ] || die "needs Linux, this is $(uname -s)"
[ "$(id -u)" = 0 ] || die "needs root, for network namespaces and BPF; run: sudo make demo"
need_go
apt_for ip=iproute2 ethtool=ethtool iperf3=iperf3

make build
exec bin/overlane lab run udp-one latency-idle \
	--variants overlay,rps,aggregate,shorter,pipeline --rounds 5 --seconds 2
