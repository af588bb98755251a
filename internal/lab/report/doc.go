// SPDX-License-Identifier: Apache-2.0

// Package report turns the raw numbers of a lab series into figures that can
// be argued with: a table for a terminal, JSON for machines, and a page with
// plots.
//
// # What is compared
//
// Variants run interleaved, so a value is only ever set against the value of
// the same round. A ratio is variant / reference, whichever way better lies:
// 1.21 on a rate is a gain, 0.52 on a latency is one too. The figure of a
// comparison is the median of its paired ratios; its uncertainty is a 95 %
// percentile bootstrap interval over the pairs, [Resamples] resamples from the
// fixed seed [Seed]. Every comparison restarts the generator, so that a figure
// depends on its own numbers and not on what else ran beside it.
//
// # When a figure counts
//
// A series counts with at least [MinRounds] rounds and none of them missing.
// docs/lab.md says by which rules figures are judged.
//
// # What is never silent
//
// A round in which a variant gave no value, or NaN, is missing: it is null in
// the JSON, an empty field in the CSV, and counted beside every figure that it
// shrank. Order violations and drops are shown as sums over all rounds, because
// a median would hide the one round that had them. A row whose generator had
// less than 5 % of its core left is marked generator-bound; a mechanism that
// acted on less than half of the packets is marked as an abstention.
package report
