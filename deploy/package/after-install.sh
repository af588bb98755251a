#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs when the deb or the rpm has been installed or upgraded. A first
# installation starts nothing: the operator does, after overlane plan --config FILE.
# An upgrade restarts the service if it runs. One that does not come up is
# no failure of the package, which would stay half configured.
set -e

if [ -d /run/systemd/system ]; then
	{ systemctl daemon-reload && systemctl try-restart overlane.service; } ||
		echo "overlane: installed, but the service did not start again; see: journalctl -u overlane" >&2
fi
