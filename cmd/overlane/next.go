// SPDX-License-Identifier: Apache-2.0

//go:build next

package main

// With the build tag "next" this is a later overlane; see internal/apply/version_next.go.
func init() { version = "next" }
