#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs when the deb or the rpm has been installed or upgraded. A first
# installation starts nothing: the operator does, after `overlane plan`.
# An upgrade restarts the service if it runs.
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart overlane.service
fi
