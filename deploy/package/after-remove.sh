#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs when the files of the deb or the rpm are gone. dpkg removes the
# configuration with "purge" only; rpm has no purge, and keeps a configuration
# that the operator has changed as config.yaml.rpmsave.
set -e

case "$1" in
remove | purge | 0)
	if [ -d /run/systemd/system ]; then
		systemctl daemon-reload
	fi
	# A daemon of another network namespace holds its lock, and restores when it ends. The journal of a killed one
	# is kept, too: overlane restores from it in that namespace only.
	kept=
	for dir in /run/overlane/*/; do
		if [ -s "$dir/journal" ]; then
			kept=yes
			if flock -n "$dir/lock" true; then
				echo "overlane: kept ${dir}journal, of settings that a killed daemon of another network namespace has changed; install overlane again and run in that namespace: overlane off" >&2
			fi
		elif [ -d "$dir" ]; then
			flock -n "$dir/lock" rm -rf "$dir" || true
		fi
	done
	[ ! -d /run/overlane ] || [ -n "$kept" ] || rmdir /run/overlane || true
	;;
esac
if [ "$1" = purge ]; then
	rm -rf /etc/overlane
fi
