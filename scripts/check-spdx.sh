#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Every source file says on its first lines under which licence it stands, and
# it is the right one: kernel-side code under either of two, all else Apache.
set -euo pipefail
cd "$(dirname "$0")/.."

bad=0
while IFS= read -r -d '' f; do
	[ -f "$f" ] || continue # deleted, not yet committed
	case $f in
	LICENSE | LICENSES/* | go.mod | go.sum) continue ;;
	*_bpfel.go | *_bpfeb.go | */testdata/fuzz/*) continue ;; # written by tools
	test/manycore/qemu/*) want='GPL-2.0-or-later' ;; # parts of the emulator, which is under that
	bpf/*.[ch] | *.bpf.[ch] | */bpf/*.[ch]) want='(GPL-2.0-only OR BSD-2-Clause)' ;;
	*.go | *.c | *.h | *.sh | *.bash | *.py | *.yaml | *.yml | *.service) want='Apache-2.0' ;;
	Makefile | */Makefile | .ci/* | scripts/* | .clang-format | .gitignore | *Dockerfile*) want='Apache-2.0' ;;
	*) continue ;; # prose, data, objects
	esac
	case $(head -c 2 "$f") in '') continue ;; esac
	if ! head -n 3 "$f" | grep -qF "SPDX-License-Identifier: $want"; then
		echo "$f: no line \"SPDX-License-Identifier: $want\" among the first three" >&2
		bad=1
	fi
done < <(git ls-files -z)
exit $bad
