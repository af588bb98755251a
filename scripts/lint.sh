#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A short list of checks, each of which found real faults somewhere. One may be
# named: scripts/lint.sh gofmt. Exit status 77: it cannot run here, and the
# last line says why.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
need_go

sources() { git ls-files -z --cached --others --exclude-standard -- "$@" |
	while IFS= read -r -d '' f; do [ -f "$f" ] && printf '%s\0' "$f"; done; }

spdx() { scripts/check-spdx.sh; }

gofmt_() {
	local out
	out=$(sources '*.go' | xargs -0r gofmt -l)
	[ -z "$out" ] || { printf 'not formatted by gofmt:\n%s\n' "$out" >&2; return 1; }
}

# All packages but what lies in build/, which is no part of the tree.
packages() { go list ./... | grep -v "^$(go list -m)/build/"; }

vet() { packages | xargs go vet; }

staticcheck() { packages | xargs go run "${STATICCHECK:-honnef.co/go/tools/cmd/staticcheck@v0.8.2}"; }

clang_format() {
	local tool=${CLANG_FORMAT:-clang-format-19}
	command -v "$tool" >/dev/null || {
		echo "needs $tool (Debian: apt-get install $tool)" >&2
		return 77
	}
	sources 'bpf/*.[ch]' '*/bpf/*.[ch]' '*.bpf.c' | sort -zu | xargs -0r "$tool" --style=file --dry-run -Werror
}

shell() {
	command -v shellcheck >/dev/null || {
		echo "needs shellcheck (Debian: apt-get install shellcheck)" >&2
		return 77
	}
	sources '*.sh' .ci/run | xargs -0r shellcheck --severity=warning
}

if [ $# -gt 0 ]; then
	case $1 in
	gofmt) gofmt_ ;;
	spdx | vet | staticcheck | shell) "$1" ;;
	clang-format) clang_format ;;
	*) echo "no check named $1; there are: spdx gofmt vet staticcheck clang-format shell" >&2 && exit 2 ;;
	esac
	exit
fi

bad=0
for check in spdx gofmt vet staticcheck clang-format shell; do
	status=0
	"$0" "$check" || status=$?
	case $status in
	0) echo "ok      $check" ;;
	77) echo "skipped $check" ;;
	*) echo "FAILED  $check" && bad=1 ;;
	esac
done
exit $bad
