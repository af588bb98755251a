// SPDX-License-Identifier: Apache-2.0

//go:build !next

package apply

// journalVersion changes when an older overlane could no longer restore what
// a newer one wrote.
const journalVersion = 2
