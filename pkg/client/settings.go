package client

import (
	"context"
	"fmt"

	"conclave/subjects"
)

// Settings lists every setting of the running system with its origin.
func (c *Client) Settings(ctx context.Context) (subjects.SettingList, error) {
	l, err := request(ctx, c, readTimeout, subjects.SettingListService, subjects.Empty{})
	if err != nil {
		return l, fmt.Errorf("listing the settings: %w", err)
	}
	return l, nil
}

// ChangeSetting writes one setting to the user's file, and applies it where that needs no restart.
func (c *Client) ChangeSetting(ctx context.Context, name, value string) (subjects.SettingChanged, error) {
	return request(ctx, c, principalTimeout, subjects.SettingChangeService,
		subjects.SettingChange{Name: name, Value: value})
}

// RunDoctor checks the installation as conclave doctor does. It fails where no process with all keys runs.
func (c *Client) RunDoctor(ctx context.Context) ([]subjects.DoctorCheck, error) {
	r, err := request(ctx, c, principalTimeout, subjects.DoctorService, subjects.Empty{})
	return r.Checks, err
}
