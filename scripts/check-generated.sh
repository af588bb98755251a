#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Regenerates everything in a copy of the tree and compares: committed objects
# must be what the pinned compiler makes of the committed sources.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
need_go

for tool in "${BPF2GO_CC:=clang-19}" "${BPF2GO_STRIP:=llvm-strip-19}"; do
	command -v "$tool" >/dev/null || {
		echo "needs $tool to regenerate the BPF objects (Debian: apt-get install ${tool/llvm-strip/llvm})" >&2
		exit 77
	}
done
export BPF2GO_CC BPF2GO_STRIP

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard |
	while IFS= read -r -d '' f; do [ -e "$f" ] && printf '%s\0' "$f"; done |
	tar --null -T - -cf - | tar -xf - -C "$copy"

# Without what is to be made, a file that no generator makes any more shows.
made() { (cd "$1" && find . \( -name '*_bpfel.go' -o -name '*_bpfel.o' \) -not -path './.git/*' | sort); }
made "$copy" >"$copy/.before"
(cd "$copy" && xargs -r rm -f <.before && make generate) || {
	echo "make generate failed" >&2
	exit 1
}

bad=0
while IFS= read -r f; do
	if [ ! -e "$copy/$f" ]; then
		echo "$f: no generator makes this file" >&2
	elif [ ! -e "$f" ]; then
		echo "$f: not there; run: make generate" >&2
	elif ! cmp -s "$f" "$copy/$f"; then
		echo "$f: differs from what its source makes; run: make generate" >&2
	else
		continue
	fi
	bad=1
done < <({ cat "$copy/.before"; made "$copy"; } | sort -u)
exit $bad
