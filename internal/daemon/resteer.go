// SPDX-License-Identifier: Apache-2.0

//go:build resteer

package daemon

import (
	"context"
	"errors"
)

// Resteer makes each poll wish for another lane, for tests of the order guard.
func (d *Daemon) Resteer(ctx context.Context, on bool) error {
	var err error
	e := d.do(ctx, func() {
		t := tuning
		t.Resteer = on
		err = d.dp.SetTuning(t)
	})
	return errors.Join(e, err)
}
