package registry_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"conclave/actors/registry"
	"conclave/pkg/actor"
	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// fullLog is an audit log that stores nothing while it is full.
type fullLog struct {
	*audit.Writer
	full atomic.Bool
}

func (l *fullLog) Append(ctx context.Context, rec subjects.AuditRecord) error {
	if l.full.Load() {
		return errors.New("the disk is full")
	}
	return l.Writer.Append(ctx, rec)
}

// recordedSettings accepts every change and counts it.
type recordedSettings struct{ changes atomic.Int32 }

func (*recordedSettings) ListSettings() (subjects.SettingList, error) {
	return subjects.SettingList{Settings: []subjects.Setting{{Name: "generator.steps"}}}, nil
}

func (s *recordedSettings) PrepareSetting(name, value string) (func(context.Context) (subjects.SettingChanged, error),
	error,
) {
	return func(context.Context) (subjects.SettingChanged, error) {
		s.changes.Add(1)
		return subjects.SettingChanged{Setting: subjects.Setting{Name: name, Value: value}}, nil
	}, nil
}

// TestSettingNeedsARecord: a setting is not changed without an acknowledged audit record.
func TestSettingNeedsARecord(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	log, settings := &fullLog{}, &recordedSettings{}
	b.Run(b.AuditedSpec(subjects.Registry, func(_ context.Context, w *audit.Writer, h *audit.Hasher) (actor.Actor,
		error,
	) {
		log.Writer = w
		r, err := registry.New(registry.Config{AuditTimeout: testTimeout}, b.Server, bus.Home{Data: b.Dir}, log, h)
		if err == nil {
			r.ServeSettings(settings)
		}
		return r, err
	}), actor.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	change := func() error {
		_, err := actor.Ask(ctx, b.Out("gateway"), subjects.SettingChangeService,
			subjects.SettingChange{Name: "generator.steps", Value: "7"})
		return err
	}
	log.full.Store(true)
	var f *subjects.Fault
	if err := change(); !errors.As(err, &f) || f.Code != subjects.CodeNoAudit || settings.changes.Load() != 0 {
		t.Errorf("without an audit log: %v, %d changes", err, settings.changes.Load())
	}
	log.full.Store(false)
	if err := change(); err != nil || settings.changes.Load() != 1 {
		t.Errorf("with an audit log: %v, %d changes", err, settings.changes.Load())
	}
}
