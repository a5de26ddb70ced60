package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"conclave/subjects"
)

// Provision makes the streams, buckets and consumers of the table with the provisioners' ephemeral keys, and forgets
// the keys: from then on nobody lives where streams live. genesis is the first record of an audit log that is still empty.
func (s *Server) Provision(ctx context.Context, genesis []byte) error {
	s.mu.Lock()
	boot := s.bootKeys
	s.mu.Unlock()
	if boot == nil {
		return errors.New("provisioning: already done, and the keys are gone")
	}
	b := &Bus{URL: s.URL(), Server: s, Log: s.log}
	if err := provisionTable(ctx, b, boot, s.cfg, genesis); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kp := range s.bootKeys {
		kp.Wipe()
	}
	s.bootKeys = nil
	return nil
}

// ProvisionRemote does the same on a server that is another process, with provisioners' keys from files.
func ProvisionRemote(ctx context.Context, b *Bus, cfg ServerConfig, genesis []byte) error {
	_, roles := subjects.Table().Roles()
	boot := map[string]nkeys.KeyPair{}
	for _, r := range roles {
		kp, err := b.Keys.Seed(r)
		if err != nil {
			return fmt.Errorf("provisioning: %w", err)
		}
		boot[r] = kp
	}
	return provisionTable(ctx, b, boot, cfg.withDefaults(), genesis)
}

func provisionTable(ctx context.Context, b *Bus, boot map[string]nkeys.KeyPair, cfg ServerConfig, genesis []byte) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	l := subjects.Table()
	for role, kp := range boot {
		nc, err := b.connectRole(role, kp)
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
			if err := createStream(ctx, nc, js, st, cfg); err != nil {
				return fmt.Errorf("provisioning %s: %w", st.Name, err)
			}
			if st.Name == subjects.Audit {
				if err := publishGenesis(ctx, nc, js, genesis); err != nil {
					return fmt.Errorf("provisioning %s: %w", st.Name, err)
				}
			}
		}
		if place != subjects.Core {
			continue
		}
		for _, p := range l.Consumers {
			c := jetstream.ConsumerConfig{
				Durable: p.Name, AckPolicy: jetstream.AckExplicitPolicy, AckWait: subjects.AckWait, MaxDeliver: subjects.MaxDeliver,
				FilterSubjects: p.Filter, MaxWaiting: 64,
			}
			if p.Ordered {
				c.MaxAckPending = 1
			}
			if p.Unlimited {
				c.MaxDeliver = -1
			}
			if _, err := js.CreateOrUpdateConsumer(ctx, p.Stream, c); err != nil {
				return fmt.Errorf("provisioning consumer %s of %s: %w", p.Name, p.Stream, err)
			}
		}
	}
	return nil
}

// createStream creates a stream. A stream of CORE that the table has changed is updated; the audit never is.
func createStream(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, st subjects.Stream, cfg ServerConfig) error {
	c := jetstream.StreamConfig{
		Name: st.Name, Description: st.Doc, Subjects: st.Subjects, Storage: jetstream.FileStorage,
		MaxAge: st.MaxAge, MaxBytes: st.MaxBytes, Duplicates: st.DedupeWindow, MaxMsgSize: 1 << 20,
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
	if st.RepublishFrom != "" {
		c.RePublish = &jetstream.RePublish{Source: st.RepublishFrom, Destination: st.RepublishTo}
	}
	if st.MapFrom != "" {
		c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: st.MapFrom, Destination: st.MapTo}
	}
	_, err := js.CreateStream(ctx, c)
	if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return err
	}
	if st.Account == subjects.Audit {
		return checkAuditStream(ctx, nc, c)
	}
	_, err = js.UpdateStream(ctx, c)
	return err
}

// checkAuditStream accepts an audit log of another size, which a rotation would give the new one, and refuses one with any other
// setting: the server knows many ways to lose, rename or add messages, and will learn more.
func checkAuditStream(ctx context.Context, nc *nats.Conn, want jetstream.StreamConfig) error {
	m, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+want.Name, nil)
	if err != nil {
		return err
	}
	var info struct {
		Config map[string]any `json:"config"`
	}
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return err
	}
	ours := map[string]any{}
	b, err := json.Marshal(want)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &ours); err != nil {
		return err
	}
	for name, value := range info.Config {
		switch name {
		case "max_bytes", "description", "metadata":
			continue
		}
		if expected, said := ours[name]; said && reflect.DeepEqual(value, expected) || isDefaultSetting(name, value) {
			continue
		}
		return fmt.Errorf("the audit log on disk is not append-only: someone changed its %s. Look at it with conclave audit verify, then start a new one with conclave audit rotate", name)
	}
	for _, name := range []string{"deny_delete", "deny_purge", "discard"} {
		if !reflect.DeepEqual(info.Config[name], ours[name]) {
			return fmt.Errorf("the audit log on disk is not append-only: its %s is not set. Look at it with conclave audit verify, then start a new one with conclave audit rotate", name)
		}
	}
	return nil
}

// isDefaultSetting reports whether a setting has the value the server gives to what nobody has set.
func isDefaultSetting(name string, value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == "" || name == "compression" && v == "none"
	case float64:
		return v == 0 || v == -1 || name == "num_replicas" && v == 1
	case []any:
		return len(v) == 0
	case map[string]any: // consumer limits and the like: every part of it unset
		for part, x := range v {
			if !isDefaultSetting(part, x) {
				return false
			}
		}
		return true
	}
	return false
}

// ErrAuditLost means that the audit is empty although its anchors say that it held records.
var ErrAuditLost = errors.New("the audit is gone: its anchors say that it held records, and the store has none")

// publishGenesis writes the first record of an empty trail. The server makes sure that it is the first.
func publishGenesis(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, genesis []byte) error {
	st, err := js.Stream(ctx, subjects.Audit)
	if err != nil {
		return err
	}
	if st.CachedInfo().State.LastSeq > 0 {
		return nil
	}
	if len(genesis) == 0 {
		return ErrAuditLost
	}
	msg := &nats.Msg{Subject: "audit.AUDIT.genesis", Data: genesis}
	if _, err := js.PublishMsg(ctx, msg, jetstream.WithExpectStream(subjects.Audit), jetstream.WithExpectLastSequence(0)); err != nil {
		return fmt.Errorf("writing the first record: %w", err)
	}
	return nil
}
