// SPDX-License-Identifier: Apache-2.0

// Package e2e holds the end-to-end test that runs under other kernels: an
// overlay of two hosts with a pod each, plain and with the daemon acting.
package e2e
