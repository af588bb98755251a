#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Fills README.md with what overlane really prints: doctor, plan and status in a
# lab of its own, as at a terminal of 100 columns; with the argument "demo" also
# what `make demo` prints (4 minutes more). Run it before a release.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

[ "$(id -u)" = 0 ] || die "needs root, for network namespaces and BPF"
apt_for ip=iproute2 ethtool=ethtool script=bsdutils
make build >/dev/null

lab=readme$$
state=$(mktemp -d)
trap 'bin/overlane lab down --name "$lab" >/dev/null || true; rm -rf "$state"' EXIT

# here VERB... runs overlane on the receiving host.
here() { bin/overlane lab exec --name "$lab" hB -- bin/overlane "$@" --state-dir "$state"; }

# seen VERB prints what a terminal shows.
seen() {
	script -qefc "stty cols 100; NO_COLOR=1 bin/overlane lab exec --name $lab hB -- bin/overlane $1 --state-dir $state" /dev/null </dev/null |
		tr -d '\r' | sed 's/ *$//'
}

# fill REGION replaces what is between the markers with standard input, as code.
fill() {
	{ echo '```'; cat; echo '```'; } >"$state/text"
	awk -v begin="<!-- $1:begin -->" -v end="<!-- $1:end -->" -v text="$state/text" '
		$0 == end { skip = 0 }
		!skip { print }
		$0 == begin { while ((getline line < text) > 0) print line; skip = 1; found = 1 }
		END { exit !found }' README.md >"$state/README" || die "README.md has no <!-- $1:begin -->"
	cat "$state/README" >README.md
}

bin/overlane lab up --name "$lab" --topology nested --pods 2 >/dev/null
{ echo '$ sudo overlane doctor'; seen doctor; } | fill doctor
{ echo '$ sudo overlane plan'; seen plan; } | fill plan
bin/overlane lab run udp-one --name "$lab" --variants overlay --rounds 1 --seconds 60 >"$state/traffic" 2>&1 &
traffic=$!
# The lab first sees what the host network takes. The daemon comes after that.
until grep -qs '^the host network takes' "$state/traffic"; do
	kill -0 $traffic || die "no traffic: $(cat "$state/traffic")"
	sleep 0.2
done
here run 2>"$state/log" &
daemon=$!
until here status 2>/dev/null | grep -Eq '^aggregate +active'; do
	kill -0 $traffic || die "aggregate did not become active: $(cat "$state/log")"
	sleep 0.5
done
sleep 10 # packets to count, beyond the lab's own preparations
{ echo '$ sudo overlane status'; seen status; } | fill status
wait $traffic
here off >/dev/null
wait $daemon

if [ "${1:-}" = demo ]; then
	scripts/demo.sh 2>/dev/null >"$state/demo"
	sed '/^Generator idle/,$d' "$state/demo" | fill demo
fi
