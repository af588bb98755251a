// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// WriteDir writes a report into dir, which it creates when needed:
//
//	index.html   one page with all series; needs nothing beside it
//	runs.csv     every number of every round
//	result.json  the series; of several, one result-SCENARIO-NIC.json each
//
// Everything is rendered before the first file is written. A file of the same
// name is replaced, others are left alone.
func WriteDir(dir string, results []Result) error {
	if len(results) == 0 {
		return errors.New("write report: no series to report; run at least one scenario")
	}
	var page, runs bytes.Buffer
	if err := HTML(&page, results); err != nil {
		return err
	}
	if err := CSV(&runs, results); err != nil {
		return err
	}
	files := map[string][]byte{"index.html": page.Bytes(), "runs.csv": runs.Bytes()}
	names := jsonNames(results)
	for i, r := range results {
		var b bytes.Buffer
		if err := r.JSON(&b); err != nil {
			return err
		}
		files[names[i]] = b.Bytes()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create report directory: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := os.WriteFile(filepath.Join(dir, name), files[name], 0o644); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	return nil
}

// jsonNames gives each result a file name of its own.
func jsonNames(results []Result) []string {
	if len(results) == 1 {
		return []string{"result.json"}
	}
	var names []string
	for _, r := range results {
		stem := "result-" + unfit.ReplaceAllString(r.Scenario+"-"+r.NIC, "-")
		name := stem + ".json"
		for n := 2; slices.Contains(names, name); n++ {
			name = stem + "-" + strconv.Itoa(n) + ".json"
		}
		names = append(names, name)
	}
	return names
}

// unfit are characters that a file name is better without.
var unfit = regexp.MustCompile(`[^a-zA-Z0-9._-]`)

// CSV writes one line per value: scenario, nic, variant, round (from 1),
// metric, value. A missing value is an empty field.
func CSV(w io.Writer, results []Result) error {
	c := csv.NewWriter(w)
	lines := [][]string{{"scenario", "nic", "variant", "round", "metric", "value"}}
	for _, r := range results {
		for _, v := range r.Variants {
			for _, metric := range slices.Sorted(maps.Keys(v.Metrics)) {
				for i, x := range v.Metrics[metric].Runs {
					value := ""
					if !x.Missing() {
						value = strconv.FormatFloat(float64(x), 'f', -1, 64)
					}
					lines = append(lines, []string{r.Scenario, r.NIC, v.Name, strconv.Itoa(i + 1), metric, value})
				}
			}
		}
	}
	if err := c.WriteAll(lines); err != nil {
		return fmt.Errorf("write raw numbers: %w", err)
	}
	return nil
}
