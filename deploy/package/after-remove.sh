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
	# A daemon of another network namespace holds its lock, and keeps its journal.
	for dir in /run/overlane/*/; do
		[ ! -d "$dir" ] || flock -n "$dir/lock" rm -rf "$dir" || true
	done
	[ ! -d /run/overlane ] || rmdir /run/overlane || true
	;;
esac
if [ "$1" = purge ]; then
	rm -rf /etc/overlane
fi
