package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"conclave/subjects"
)

// Provision makes the streams, buckets and consumers of the table with the provisioners' ephemeral keys, and forgets
// the keys: from then on nobody lives where streams live. genesis is the first record of a trail that is still empty.
func (s *Server) Provision(ctx context.Context, genesis []byte) error {
	s.mu.Lock()
	boot := s.boot
	s.mu.Unlock()
	if boot == nil {
		return errors.New("provisioning: already done, and the keys are gone")
	}
	b := &Bus{URL: s.URL(), Srv: s, Log: s.log}
	if err := provision(ctx, b, boot, s.cfg, genesis); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kp := range s.boot {
		kp.Wipe()
	}
	s.boot = nil
	return nil
}

// ProvisionWith does the same on a server that is another process, with provisioners' keys from files.
func ProvisionWith(ctx context.Context, b *Bus, cfg ServerConfig, genesis []byte) error {
	_, roles := subjects.Table().Roles()
	boot := map[string]nkeys.KeyPair{}
	for _, r := range roles {
		kp, err := b.Keys.Seed(r)
		if err != nil {
			return fmt.Errorf("provisioning: %w", err)
		}
		boot[r] = kp
	}
	return provision(ctx, b, boot, cfg.withDefaults(), genesis)
}

func provision(ctx context.Context, b *Bus, boot map[string]nkeys.KeyPair, cfg ServerConfig, genesis []byte) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	l := subjects.Table()
	for role, kp := range boot {
		nc, err := b.dial(role, kp)
		if err != nil {
			return fmt.Errorf("provisioning: %w", err)
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			return fmt.Errorf("provisioning: %w", err)
		}
		place := l.AccountOf(role)
		for _, st := range l.Streams {
			if st.Account != place {
				continue
			}
			if err := makeStream(ctx, js, st, cfg); err != nil {
				return fmt.Errorf("provisioning %s: %w", st.Name, err)
			}
			if st.Name == subjects.Audit {
				if err := openTrail(ctx, nc, js, genesis); err != nil {
					return fmt.Errorf("provisioning %s: %w", st.Name, err)
				}
			}
		}
		if place != subjects.Core {
			continue
		}
		for _, p := range l.Pulls {
			c := jetstream.ConsumerConfig{
				Durable: p.Name, AckPolicy: jetstream.AckExplicitPolicy, AckWait: subjects.AckWait, MaxDeliver: subjects.MaxDeliver,
				FilterSubjects: p.Filter, MaxWaiting: 64,
			}
			if p.OneAt {
				c.MaxAckPending = 1
			}
			if _, err := js.CreateOrUpdateConsumer(ctx, p.Stream, c); err != nil {
				return fmt.Errorf("provisioning consumer %s of %s: %w", p.Name, p.Stream, err)
			}
		}
	}
	return nil
}

// makeStream creates a stream. A stream of CORE that the table has changed is updated; the audit never is.
func makeStream(ctx context.Context, js jetstream.JetStream, st subjects.Stream, cfg ServerConfig) error {
	c := jetstream.StreamConfig{
		Name: st.Name, Description: st.Doc, Subjects: st.Subjects, Storage: jetstream.FileStorage,
		MaxAge: st.MaxAge, MaxBytes: st.MaxBytes, Duplicates: st.Once, MaxMsgSize: 1 << 20,
	}
	switch {
	case st.Name == subjects.Audit:
		// Append-only as far as the stream can say it. What makes it true is that nobody may update, purge or delete.
		c.Discard, c.MaxBytes, c.DenyDelete, c.DenyPurge = jetstream.DiscardNew, cfg.AuditMax, true, true
	case st.Bucket != "":
		c.MaxMsgsPerSubject, c.Discard, c.AllowRollup, c.DenyDelete, c.AllowDirect = 1, jetstream.DiscardNew, true, true, true
		c.Duplicates = 2 * time.Minute
	case st.Name == "EVENTS":
		c.MaxBytes = cfg.EventMax
	}
	if st.EchoFrom != "" {
		c.RePublish = &jetstream.RePublish{Source: st.EchoFrom, Destination: st.EchoTo}
	}
	if st.MapFrom != "" {
		c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: st.MapFrom, Destination: st.MapTo}
	}
	_, err := js.CreateStream(ctx, c)
	if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return err
	}
	if st.Account == subjects.Audit {
		return sameTrail(ctx, js, c)
	}
	_, err = js.UpdateStream(ctx, c)
	return err
}

// sameTrail accepts a trail of another size, which a rotation would give the new one, and refuses one that is not
// append-only any more.
func sameTrail(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) error {
	st, err := js.Stream(ctx, want.Name)
	if err != nil {
		return err
	}
	got := st.CachedInfo().Config
	keepsAll := got.Discard == want.Discard && got.Retention == jetstream.LimitsPolicy && got.Storage == jetstream.FileStorage &&
		got.DenyDelete && got.DenyPurge && !got.AllowRollup && !got.AllowMsgTTL && !got.NoAck && !got.Sealed &&
		got.MaxAge == 0 && got.MaxMsgs <= 0 && got.MaxMsgsPerSubject <= 0
	takesOnlyWriters := slices.Equal(got.Subjects, want.Subjects) && got.SubjectTransform == nil && got.RePublish == nil && got.Mirror == nil && len(got.Sources) == 0
	if !keepsAll || !takesOnlyWriters {
		return errors.New("the trail on disk is not append-only: someone changed its settings. Look at it with conclave audit verify, then start a new one with conclave audit rotate")
	}
	return nil
}

// ErrTrailLost means that the audit is empty although its anchors say that it held records.
var ErrTrailLost = errors.New("the audit is gone: its anchors say that it held records, and the store has none")

// openTrail writes the first record of an empty trail. The server makes sure that it is the first.
func openTrail(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, genesis []byte) error {
	st, err := js.Stream(ctx, subjects.Audit)
	if err != nil {
		return err
	}
	if st.CachedInfo().State.LastSeq > 0 {
		return nil
	}
	if len(genesis) == 0 {
		return ErrTrailLost
	}
	msg := &nats.Msg{Subject: "audit.AUDIT.genesis", Data: genesis}
	if _, err := js.PublishMsg(ctx, msg, jetstream.WithExpectStream(subjects.Audit), jetstream.WithExpectLastSequence(0)); err != nil {
		return fmt.Errorf("writing the first record: %w", err)
	}
	return nil
}
