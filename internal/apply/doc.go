// SPDX-License-Identifier: Apache-2.0

// Package apply carries out the steps of a plan and brings back what was
// there before, whatever becomes of the process that carried them out.
//
// A setting that outlives its process is written to a journal before it is
// written to the kernel. The journal, and a lock that a living owner holds,
// lie in a folder per network namespace. Three parties restore from it: the
// owner itself, its guardian (a child that outlives it by a moment), and
// the process that takes the lock next.
//
// A restored setting is never written blindly: the namespace, the device and
// the value must be those that the journal knows. What another program has
// changed in the meantime stays as they left it.
package apply
