# SPDX-License-Identifier: Apache-2.0
# A PC with what that takes, two serial ports among it.
CONFIG_I440FX=y
