#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs before the files of the deb or the rpm go. dpkg says "remove" or
# "upgrade", rpm says how many versions will be left: 0 or 1.
set -e

case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now overlane.service
	fi
	# This ends a daemon that was started by hand, and restores what a killed
	# one has left. Without the folder there is neither. Where it fails the
	# removal fails: without the program the settings could not be restored.
	if [ -d /run/overlane ]; then
		overlane off
	fi
	;;
esac
