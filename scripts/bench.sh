#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The whole table, row by row. Arguments go to every `overlane lab run`. A page
# of plots and the raw numbers of each row are left under build/report.
#
# ROWS="udp-one tcp-one" runs only rows whose names begin so.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

[ "$(uname -s)" = Linux ] || die "needs Linux, this is $(uname -s)"
[ "$(id -u)" = 0 ] || die "needs root, for network namespaces and BPF"
apt_for ip=iproute2 ethtool=ethtool iperf3=iperf3 sockperf=sockperf \
	memcached=memcached memcaslap=libmemcached-tools nginx=nginx-light wrk=wrk

common=("$@")
missed=()

# row NAME ARGUMENT... runs one scenario; a verdict that is not met (exit status
# 4) does not keep the others from running.
row() {
	local name=$1 status=0
	shift
	[ -z "${ROWS:-}" ] || wanted "$name" || return 0
	printf '\n== %s\n' "$name"
	bin/overlane lab run "$@" --report "build/report/$name" "${common[@]}" || status=$?
	case $status in
	0) ;;
	4) missed+=("$name") ;;
	*) die "$name ended with exit status $status" ;;
	esac
}

wanted() {
	local w
	for w in $ROWS; do [[ $1 == "$w"* ]] && return 0; done
	return 1
}

reference=overlay,host,rps,rps-best
row udp-one udp-one --variants all
for flows in 2 4 8; do
	for rates in equal skewed shifting; do
		row "udp-many-$flows-$rates" udp-many --flows $flows --rates $rates \
			--variants $reference,overlay-xdp,pipeline,pipeline-forced
	done
done
row udp-read udp-read --variants $reference,pipeline,auto
row udp-large udp-large --variants $reference,pipeline,pipeline-tc,pipeline-xdp
row tcp-one tcp-one --variants all
row tcp-many tcp-many --variants all
row latency-idle latency-idle --variants $reference,pipeline
row latency-load-udp latency-load --load 0.5 --variants $reference,pipeline
row latency-load-tcp latency-load-tcp --load 0.5 --variants $reference,pipeline
row latency-rr latency-rr --variants overlay,host,priority
row memcached memcached --variants overlay,host,priority
row web web --variants overlay,host,priority
for queues in 1 2; do
	for flows in 1 8; do
		row "overload-$queues-$flows" overload --queues $queues --flows $flows --variants overlay,pipeline
	done
done
# Threaded NAPI is a change only where the wire is polled in softirq.
row softirq udp-one udp-many latency-idle --nic softirq --variants overlay,threaded,pipeline

[ ${#missed[@]} -eq 0 ] || { printf '\nverdict not met: %s\n' "${missed[*]}" && exit 4; }
