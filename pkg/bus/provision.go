package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"conclave/pkg/audit"
	"conclave/subjects"
)

// Provision creates the streams, buckets and consumers of the table with the ephemeral keys of the provisioners, and
// wipes the keys: afterwards no key may administer streams, and a second call fails. After an error the keys remain,
// and it may be called again. genesis is the first record of an empty audit log and unused otherwise; nil for an empty
// one is [ErrAuditLost].
func (s *Server) Provision(ctx context.Context, genesis []byte) error {
	s.mu.Lock()
	boot := s.bootKeys
	s.mu.Unlock()
	if boot == nil {
		return errors.New("provisioning: already done, and the keys are wiped")
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

// ProvisionRemote is [Server.Provision] for a server in another process, with the provisioners' keys from files, which
// must exist and are not removed. cfg has the sizes of the streams.
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

// provisionTable creates or updates the streams and consumers of the table within two minutes, each with the role of
// its account in keys, and the genesis of an empty audit log. In a cluster it returns when every replica is up to date.
// Streams that the table does not have are left alone. The first error ends it.
func provisionTable(ctx context.Context, b *Bus, keys map[string]nkeys.KeyPair, cfg ServerConfig,
	genesis []byte,
) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	l := subjects.Table()
	for role, kp := range keys {
		nc, err := b.connectRole(role, kp)
		if err != nil {
			return fmt.Errorf("provisioning: %w", err)
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			return fmt.Errorf("provisioning: %w", err)
		}
		if cfg.Replicas == 0 && nc.ConnectedClusterName() != "" {
			cfg.Replicas = ClusterServers
		}
		cfg.Replicas = max(cfg.Replicas, 1)
		account := l.AccountOf(role)
		if err := awaitJetStream(ctx, js, account); err != nil {
			return fmt.Errorf("provisioning: %w", err)
		}
		if account == subjects.Core {
			if err := releaseEventSubjects(ctx, js, l, cfg); err != nil {
				return fmt.Errorf("provisioning EVENTS: %w", err)
			}
		}
		for _, st := range l.Streams {
			if st.Account != account {
				continue
			}
			err := createStream(ctx, nc, js, st, cfg)
			if err == nil && st.Name == subjects.Audit {
				err = publishGenesis(ctx, js, genesis)
			}
			if err != nil {
				return fmt.Errorf("provisioning %s: %w", st.Name, err)
			}
		}
		if account == subjects.Core {
			if err := createConsumers(ctx, js, l); err != nil {
				return err
			}
			if err := awaitSources(ctx, js); err != nil {
				return fmt.Errorf("provisioning EVENTS: %w", err)
			}
		}
		if cfg.Replicas > 1 {
			if err := awaitReplicas(ctx, js, l, account); err != nil {
				return fmt.Errorf("provisioning: %w", err)
			}
		}
	}
	return nil
}

// awaitJetStream waits until JetStream answers whether a stream of account exists: a cluster that has just started
// elects a leader first.
func awaitJetStream(ctx context.Context, js jetstream.JetStream, account string) error {
	name := subjects.Audit
	if account == subjects.Core {
		name = "EVENTS"
	}
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := js.Stream(try, name)
		cancel()
		if err == nil || errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return fmt.Errorf("JetStream does not answer: in a cluster two of the %d servers must run: %w",
				ClusterServers, err)
		}
	}
}

// awaitReplicas waits until every stream of account in the table has a leader and every replica of it is up to date.
func awaitReplicas(ctx context.Context, js jetstream.JetStream, l subjects.Layout, account string) error {
	for _, st := range l.Streams {
		for st.Account == account {
			stream, err := js.Stream(ctx, st.Name)
			if err == nil && stream.CachedInfo().Cluster != nil {
				c := stream.CachedInfo().Cluster
				if c.Leader != "" && !slices.ContainsFunc(c.Replicas, func(p *jetstream.PeerInfo) bool {
					return !p.Current
				}) {
					break
				}
			}
			if !sleep(ctx, 20*time.Millisecond) {
				return fmt.Errorf("a replica of %s is behind or down: %w", st.Name, ctx.Err())
			}
		}
	}
	return nil
}

// createConsumers creates or updates the consumers of the table, which are all in CORE. An ordered one has one
// unacknowledged message at a time, an unlimited one no delivery limit.
func createConsumers(ctx context.Context, js jetstream.JetStream, l subjects.Layout) error {
	for _, p := range l.Consumers {
		c := jetstream.ConsumerConfig{
			Durable: p.Name, AckPolicy: jetstream.AckExplicitPolicy, AckWait: subjects.AckWait,
			MaxDeliver:     subjects.MaxDeliver,
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
	return nil
}

// createStream creates a stream. An existing stream of CORE is updated to the table; an audit stream never is, and one
// that is not append-only is rejected (see checkAuditStream). cfg has the sizes of the audit log and of the events.
func createStream(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, st subjects.Stream,
	cfg ServerConfig,
) error {
	c := streamConfig(st, cfg)
	_, err := js.CreateStream(ctx, c)
	for api := (*jetstream.APIError)(nil); errors.As(err, &api) && api.ErrorCode == errCodeNoPeers &&
		sleep(ctx, 200*time.Millisecond); {
		_, err = js.CreateStream(ctx, c) // a server of the cluster is still starting
	}
	if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return err
	}
	if st.Account == subjects.Audit {
		return checkAuditStream(ctx, nc, c)
	}
	_, err = js.UpdateStream(ctx, c)
	return err
}

// errCodeNoPeers is the server's code for a stream that has more replicas than the cluster has servers that run.
const errCodeNoPeers jetstream.ErrorCode = 10005

// sleep waits for d, and reports whether ctx has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// releaseEventSubjects takes the subjects of an EVENTS stream from a build in which authors published to it directly,
// so that the streams of the authors can have them. Its messages and consumers stay. Any other stream is left alone.
func releaseEventSubjects(ctx context.Context, js jetstream.JetStream, l subjects.Layout, cfg ServerConfig) error {
	events, err := js.Stream(ctx, "EVENTS")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil || len(events.CachedInfo().Config.Sources) > 0 {
		return err
	}
	for _, st := range l.Streams {
		if st.Name != "EVENTS" {
			continue
		}
		c := streamConfig(st, cfg)
		c.Sources = nil // they do not exist yet
		_, err = js.UpdateStream(ctx, c)
	}
	return err
}

// awaitSources waits until EVENTS takes the events of every author, which takes the server about 0.2 s: until then
// events of several authors would be stored in another order than they were published in. The server restores EVENTS
// first, and repeats an attempt that came before the stream of an author was there only after 12 s: such a source is
// renewed, once, because the server then searches EVENTS for its last message.
func awaitSources(ctx context.Context, js jetstream.JetStream) error {
	var renewed []string
	for {
		events, err := js.Stream(ctx, "EVENTS")
		if err != nil {
			return err
		}
		info, waits := events.CachedInfo(), false
		for _, s := range info.Sources {
			waits = waits || s.Active < 0
			if s.Active < 0 && s.Error != nil && !slices.Contains(renewed, s.Name) {
				renewed = append(renewed, s.Name)
				if err := renewSource(ctx, js, info.Config, s.Name); err != nil {
					return err
				}
			}
		}
		if !waits {
			return nil
		}
		if !sleep(ctx, 5*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// renewSource removes a source from the stream with configuration c and adds it again, so that the server begins anew
// with it, behind the last message that the stream has of it.
func renewSource(ctx context.Context, js jetstream.JetStream, c jetstream.StreamConfig, name string) error {
	without := c
	without.Sources = slices.DeleteFunc(slices.Clone(c.Sources), func(s *jetstream.StreamSource) bool {
		return s.Name == name
	})
	if _, err := js.UpdateStream(ctx, without); err != nil {
		return err
	}
	_, err := js.UpdateStream(ctx, c)
	return err
}

// Least sizes of a stream with a part of a configured size, in bytes: it must hold some of the largest messages. Audit
// records are small.
const (
	minShare      = 4 << 20
	minAuditShare = 1 << 20
)

// StreamBytes returns the largest size of a stream of the table, 0 for none.
func (c ServerConfig) StreamBytes(name string) int64 {
	for _, st := range subjects.Table().Streams {
		if st.Name == name {
			return streamConfig(st, c.withDefaults()).MaxBytes
		}
	}
	return 0
}

// streamConfig returns the settings of a stream of the table. A part of a configured size is at least
// minShare or minAuditShare.
func streamConfig(st subjects.Stream, cfg ServerConfig) jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name: st.Name, Description: st.Doc, Subjects: st.Subjects, Storage: jetstream.FileStorage,
		MaxAge: st.MaxAge, MaxBytes: st.MaxBytes, Duplicates: st.DedupeWindow, MaxMsgSize: cmp.Or(st.MaxMsgSize, 1<<20),
		Replicas: cfg.Replicas,
	}
	if st.RejectWhenFull {
		c.Discard = jetstream.DiscardNew
	}
	if st.MaxPerSubject > 0 {
		c.MaxMsgsPerSubject, c.DiscardNewPerSubject = st.MaxPerSubject, true
	}
	if st.KeepLast {
		c.MaxMsgsPerSubject = 1
	}
	if st.Share > 0 {
		size, least := cfg.EventMax, int64(minShare)
		if st.Account == subjects.Audit {
			size, least = cfg.AuditMax, minAuditShare
		}
		c.MaxBytes = size * st.Share / 100
		if st.Share < 100 {
			c.MaxBytes = max(c.MaxBytes, least)
		}
	}
	switch {
	case st.Account == subjects.Audit:
		// Append-only as far as the settings can express it; the permissions enforce it: no role may update, purge or
		// delete.
		c.DenyDelete, c.DenyPurge = true, true
	case st.Bucket != "":
		c.MaxMsgsPerSubject, c.Discard = 1, jetstream.DiscardNew
		c.AllowRollup, c.DenyDelete, c.AllowDirect = true, true, true
		c.Duplicates = 2 * time.Minute
	}
	if cfg.Repair && (st.Bucket != "" || st.KeepLast) { // a smaller limit deletes nothing of them later
		c.MaxBytes *= 2
	}
	if st.Account != subjects.Audit {
		// Events and questions are JSON with the same words again and again. The audit log is not compressed: its files
		// are read without a server, and must be readable even when a part of a block is lost.
		c.Compression = jetstream.S2Compression
	}
	if st.RepublishFrom != "" {
		c.RePublish = &jetstream.RePublish{Source: st.RepublishFrom, Destination: st.RepublishTo}
	}
	if st.MapFrom != "" {
		c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: st.MapFrom, Destination: st.MapTo}
	}
	for _, name := range st.Sources {
		c.Sources = append(c.Sources, &jetstream.StreamSource{Name: name})
	}
	return c
}

// checkAuditStream compares the settings of the existing audit stream with want. It accepts another size, which the
// next rotation adjusts, and rejects any other difference, unknown settings included: the server has many that lose,
// rename or add messages. No key may change the stream, so that its number of replicas is fixed too.
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
		case "num_replicas":
			if value != float64(want.Replicas) {
				return fmt.Errorf("the audit log has %v replicas and not %d, which is fixed when it is created: set "+
					"system.replicas to %v, or start with empty stores", value, want.Replicas, value)
			}
			continue
		}
		if expected, said := ours[name]; said && reflect.DeepEqual(value, expected) || isDefaultSetting(name, value) {
			continue
		}
		return fmt.Errorf("the audit log on disk is not append-only: its setting %s was changed. Check it with "+
			"conclave audit verify, then start a new one with conclave audit rotate", name)
	}
	for _, name := range []string{"deny_delete", "deny_purge", "discard"} {
		if !reflect.DeepEqual(info.Config[name], ours[name]) {
			return fmt.Errorf("the audit log on disk is not append-only: its %s is not set. Check it with conclave "+
				"audit verify, then start a new one with conclave audit rotate", name)
		}
	}
	return nil
}

// isDefaultSetting reports whether value, decoded from JSON, is the one that the server gives to an unset setting of
// this name. A value of an unknown type is not.
func isDefaultSetting(name string, value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == "" || name == "compression" && v == "none"
	case float64:
		return v == 0 || v == -1
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

// ErrAuditLost means that the audit log is empty and no genesis was given: its anchors name records that it held.
var ErrAuditLost = errors.New("audit log lost: its anchors name records, and the store has none")

// publishGenesis writes the first record of an empty audit log; the server rejects it unless it is the first. A log
// with messages is left as it is. Without a genesis an empty log is [ErrAuditLost].
func publishGenesis(ctx context.Context, js jetstream.JetStream, genesis []byte) error {
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
	msg := &nats.Msg{Subject: audit.GenesisSubject, Data: genesis}
	if _, err := js.PublishMsg(ctx, msg, jetstream.WithExpectStream(subjects.Audit),
		jetstream.WithExpectLastSequence(0)); err != nil {
		return fmt.Errorf("writing the first record: %w", err)
	}
	return nil
}
