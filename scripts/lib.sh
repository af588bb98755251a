# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Sourced by the other scripts: finding Go, installing what is missing.

die() {
	echo "$0: $*" >&2
	exit 1
}

# need_go puts Go on the PATH, or says what is missing.
need_go() {
	PATH=$PATH:/usr/local/go/bin
	command -v go >/dev/null || die "needs Go $(go_wanted) or newer on the PATH (https://go.dev/dl)"
	local have want
	have=$(go env GOVERSION)
	have=${have#go}
	want=$(go_wanted)
	[ "$(printf '%s\n%s\n' "$want" "${have%% *}" | sort -V | head -n 1)" = "$want" ] ||
		die "needs Go $want or newer, this is Go $have (https://go.dev/dl)"
}

go_wanted() { sed -n 's/^go //p' go.mod; }

# apt_for PROGRAM=PACKAGE... installs the packages whose programs are missing.
# A program with a slash is a file that must exist.
apt_for() {
	local pair program missing=()
	PATH=$PATH:/usr/sbin:/sbin
	for pair in "$@"; do
		program=${pair%%=*}
		case $program in
		/*) [ -e "$program" ] || missing+=("${pair#*=}") ;;
		*) command -v "$program" >/dev/null || missing+=("${pair#*=}") ;;
		esac
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	command -v apt-get >/dev/null || die "needs ${missing[*]}; there is no apt-get here to install them with"
	[ "$(id -u)" = 0 ] || die "needs root to install ${missing[*]}; or install them yourself"
	echo "installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	# Another program may hold apt's locks, as unattended-upgrades does after a boot. apt-get waits for dpkg's alone.
	{
		{ apt-get update -qq || { sleep 30 && apt-get update -qq; }; } &&
			no_servers apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=600 "${missing[@]}"
	} </dev/null >/dev/null ||
		die "apt-get could not install ${missing[*]}"
	for pair in "${missing[@]}"; do
		case $pair in
		memcached) unit_off memcached ;;
		nginx-light) unit_off nginx ;;
		docker.io) unit_off docker.socket && unit_off docker ;;
		containerd) unit_off containerd ;;
		esac
	done
}

# no_servers COMMAND... keeps what is installed by a command from being started:
# on Debian a server runs as soon as it is there.
no_servers() (
	policy=/usr/sbin/policy-rc.d
	if [ ! -e $policy ]; then
		trap 'rm -f $policy' EXIT
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod 755 $policy
	fi
	"$@"
)

# unit_off UNIT keeps it from being started at the next boot, too.
unit_off() { ! command -v systemctl >/dev/null || systemctl disable --quiet "$1" 2>/dev/null || true; }
