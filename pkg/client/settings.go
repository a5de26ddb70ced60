package client

import (
	"context"
	"fmt"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Settings lists every setting of the running system with its origin.
func (c *Client) Settings(ctx context.Context) (subjects.SettingList, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	l, err := actor.Ask(ctx, c.out, subjects.SettingListService, subjects.Empty{})
	if err != nil {
		return l, fmt.Errorf("listing the settings: %w", err)
	}
	return l, nil
}

// ChangeSetting writes one setting to the user's file, and applies it where that needs no restart.
func (c *Client) ChangeSetting(ctx context.Context, name, value string) (subjects.SettingChanged, error) {
	ctx, cancel := context.WithTimeout(ctx, principalTimeout)
	defer cancel()
	return actor.Ask(ctx, c.out, subjects.SettingChangeService, subjects.SettingChange{Name: name, Value: value})
}

// RunDoctor checks the installation as conclave doctor does. It fails where no process with all keys runs.
func (c *Client) RunDoctor(ctx context.Context) ([]subjects.DoctorCheck, error) {
	ctx, cancel := context.WithTimeout(ctx, principalTimeout)
	defer cancel()
	r, err := actor.Ask(ctx, c.out, subjects.DoctorService, subjects.Empty{})
	return r.Checks, err
}
