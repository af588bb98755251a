#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs, upgrades and purges the packages as an operator would, in roots of
# their own: the deb in a minimal Debian of debootstrap's, the rpm in an empty
# root with a shell. Each has to leave nothing. Debian comes from where this
# machine's apt gets it. Two minutes.
#
# BASE=DIR keeps the Debian there, for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

[ "$(id -u)" = 0 ] || die "needs root, for debootstrap and chroot"
apt_for debootstrap=debootstrap rpm=rpm busybox=busybox-static

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
base=${BASE:-$dir/base}
at=${PACKAGES:-build/packages} # as make has it
deb=("$at"/overlane_*.deb) rpm=("$at"/overlane-*.rpm)

step() { printf '\n== %s\n' "$*"; }

# same BEFORE AFTER fails where a list of files has changed.
same() { diff "$1" "$2" || die "the package left this behind, or took it along"; }

if [ ! -e "$base/etc/debian_version" ]; then
	step "a minimal Debian"
	apt=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' 'Component: main' | head -n 1)
	[ -n "$apt" ] || die "apt of this machine knows no Debian to take packages from"
	debootstrap --variant=minbase --include=man-db,systemd,procps,bash-completion "${apt#* }" "$base" "${apt% *}" >/dev/null
fi
cp -a "$base" "$dir/debian"
root=$dir/debian
within() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"; }
# What dpkg, the manual's index and systemd keep of their own is not the package's.
list() { (cd "$root" && find . -path ./proc -prune -o -path ./var/lib/dpkg -prune -o -path ./var/cache/man -prune -o -path ./var/log -prune -o -path ./run/systemd -prune -o -print | sort); }
cp "${deb[0]}" "$root/overlane.deb"
list >"$dir/before"

step "install the deb"
within dpkg -i /overlane.deb
within overlane --version
within overlane --help | sed -n 1,5p
within man -P cat overlane-run | sed -n 1,8p
within bash -c '. /usr/share/bash-completion/bash_completion; . /usr/share/bash-completion/completions/overlane; complete -p overlane'
within systemd-analyze verify --man=yes overlane.service && echo "the unit is understood"
[ ! -e "$root/etc/systemd/system/multi-user.target.wants/overlane.service" ] || die "installing has enabled the service"

step "upgrade with a configuration that the operator has changed"
echo 'cores: 2-3' >"$root/etc/overlane/config.yaml"
within dpkg --force-confold -i /overlane.deb >/dev/null
grep -qx 'cores: 2-3' "$root/etc/overlane/config.yaml" || die "the operator's configuration is gone"

step "purge the deb"
within dpkg --purge overlane
list >"$dir/after"
same "$dir/before" "$dir/after"
echo "nothing is left"

step "install and erase the rpm"
empty=$dir/empty
mkdir -p "$empty/bin" "$empty/var/lib/rpm"
cp "$(command -v busybox)" "$empty/bin/busybox"
for tool in sh rm rmdir; do ln -s busybox "$empty/bin/$tool"; done
# An empty root lacks the folders of the system: those that come stay.
erpm() { rpm --root "$empty" --dbpath /var/lib/rpm "$@"; }
elist() { (cd "$empty" && find . -path ./var/lib/rpm -prune -o \( ! -type d -o -name 'overlane*' \) -print | sort); }
elist >"$dir/before"
erpm --nodeps -i "${rpm[0]}"
erpm -ql overlane | sed -n 1,5p
chroot "$empty" /usr/bin/overlane --version
erpm --nodeps -e overlane
elist >"$dir/after"
same "$dir/before" "$dir/after"
echo "nothing is left"
