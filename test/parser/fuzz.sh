#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Fuzzes the parser of bpf/parse.h under sanitizers for the given time (default
# 60s). What it finds interesting is kept between runs in the build folder; a
# frame that breaks a property is left there as crash-*.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
need_go

time=${1:-60s}
clang=${BPF2GO_CC:-clang-19}
command -v "$clang" >/dev/null || {
	echo "needs $clang (Debian: apt-get install $clang libclang-rt-19-dev)" >&2
	exit 77
}
case $time in
*h) seconds=$((${time%h} * 3600)) ;;
*m) seconds=$((${time%m} * 60)) ;;
*) seconds=${time%s} ;;
esac

dir=build/fuzz/parser
mkdir -p "$dir/corpus"
"$clang" -O1 -g -std=gnu11 -DHOST_TEST -Ibpf -fno-sanitize-recover=all \
	-fsanitize=address,undefined,fuzzer -o "$dir/fuzz_parse" test/parser/host/fuzz_parse.c
PARSER_CORPUS=$PWD/$dir/corpus go test ./test/parser -run '^TestTheCorpusIsWritten$' -count=1 >/dev/null
"$dir/fuzz_parse" -max_len=700 -max_total_time="$seconds" -artifact_prefix="$dir/" "$dir/corpus"
