#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The whole table. Arguments go to every `overlane lab run`. The raw numbers and
# a page of plots are left under build/report.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

[ "$(id -u)" = 0 ] || die "needs root, for network namespaces and BPF; run: sudo make ${MAKECMDGOALS:-bench}"
apt_for ip=iproute2 ethtool=ethtool iperf3=iperf3 sockperf=sockperf

datagrams=overlay,overlay-xdp,rps,rps-best,pipeline,pipeline-tc,pipeline-xdp,pipeline-forced,host
mkdir -p build/report
bin/overlane lab run udp-one udp-many udp-large tcp-one tcp-many latency-idle \
	--variants "$datagrams" --report build/report/thread "$@"
# Threaded NAPI is a change only where the wire is polled in softirq.
bin/overlane lab run udp-one udp-many latency-idle --nic softirq \
	--variants overlay,threaded,pipeline --report build/report/softirq "$@"
