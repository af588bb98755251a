# SPDX-License-Identifier: GPL-2.0-or-later
# A PC with what that takes, two serial ports among it.
CONFIG_I440FX=y
