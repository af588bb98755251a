#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs every Go fuzz target for the given time (default 60s each).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
need_go
time=${1:-60s}

found=0
while read -r dir; do
	for target in $(sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*\*testing\.F\).*/\1/p' "$dir"/*_test.go); do
		found=$((found + 1))
		echo "== $dir $target, $time"
		go test "$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$time"
	done
done < <(git ls-files -- '*_test.go' | xargs -r grep -lE '^func Fuzz' | xargs -r -n1 dirname | sort -u | sed 's|^|./|')
[ "$found" -gt 0 ] || echo "no fuzz target in the tree"
