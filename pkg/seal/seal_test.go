package seal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"
	"github.com/vmihailenco/msgpack/v5"
	"go.yaml.in/yaml/v3"

	"conclave/pkg/seal"
	"conclave/subjects"
)

// canary is a value that must not appear in any text.
const canary = "canary-7f3a91-of-the-keyring"

func newKey(t testing.TB) *seal.Key {
	t.Helper()
	k, err := seal.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sealCanary(t testing.TB, to *seal.Key) subjects.SecretValue {
	t.Helper()
	v, err := seal.Seal(seal.NewSecret([]byte(canary)), to.Public())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSealedValueOpensOnlyForItsKey(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	v := sealCanary(t, k)
	if bytes.Contains(v.Sealed, []byte(canary)) {
		t.Error("the value can be read without a key")
	}
	got, err := seal.Open(k, v)
	if err != nil || string(got.Reveal()) != canary {
		t.Fatalf("opened %q, %v", got.Reveal(), err)
	}
	if again := sealCanary(t, k); again.From == v.From || bytes.Equal(again.Sealed, v.Sealed) {
		t.Error("two sealed values have one sender: its key was reused")
	}
	k.Wipe()
	if _, err := seal.Open(k, v); !errors.Is(err, seal.ErrSealed) {
		t.Errorf("a wiped key still opens: %v", err)
	}
}

func TestOpenRejectsChangedValues(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	good := sealCanary(t, k)
	change := func(f func(v *subjects.SecretValue)) subjects.SecretValue {
		v := subjects.SecretValue{Sealed: bytes.Clone(good.Sealed), From: good.From}
		f(&v)
		return v
	}
	for _, tt := range []struct {
		name string
		with *seal.Key
		v    subjects.SecretValue
		ok   bool
	}{
		{"unchanged", k, good, true},
		{"another receiver", newKey(t), good, false},
		{"nothing", k, subjects.SecretValue{}, false},
		{"no sender", k, change(func(v *subjects.SecretValue) { v.From = "" }), false},
		{"trick: one bit changed", k, change(func(v *subjects.SecretValue) { v.Sealed[len(v.Sealed)-1] ^= 1 }), false},
		{"trick: another nonce", k, change(func(v *subjects.SecretValue) { v.Sealed[5] ^= 1 }), false},
		{"trick: cut short", k, change(func(v *subjects.SecretValue) { v.Sealed = v.Sealed[:20] }), false},
		{"trick: another sender", k, change(func(v *subjects.SecretValue) { v.From = newKey(t).Public() }), false},
		{
			"trick: the receiver as its own sender", k, change(func(v *subjects.SecretValue) { v.From = k.Public() }),
			false,
		},
		{"trick: a sender of 64 characters", k, change(func(v *subjects.SecretValue) { v.From += "AAAAAAAA" }), false},
		{
			"trick: a sender of low order", k, change(func(v *subjects.SecretValue) { v.From = lowOrderKey(t, 0) }),
			false,
		},
		{"trick: more than any value", k, change(func(v *subjects.SecretValue) {
			v.Sealed = make([]byte, seal.MaxValue+65)
		}), false},
	} {
		got, err := seal.Open(tt.with, tt.v)
		if tt.ok != (err == nil) || !tt.ok && (!errors.Is(err, seal.ErrSealed) || got.Reveal() != nil) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("%s: the error holds the value", tt.name)
		}
	}
}

// lowOrderKey is the public key whose point is n: 0 and 1 have low order.
func lowOrderKey(t testing.TB, n byte) string {
	t.Helper()
	point := make([]byte, 32)
	point[0] = n
	public, err := nkeys.Encode(nkeys.PrefixByteCurve, point)
	if err != nil {
		t.Fatal(err)
	}
	return string(public)
}

func TestCheckKey(t *testing.T) {
	t.Parallel()
	good := newKey(t).Public()
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := nkeys.CreateCurveKeys()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, public string
		ok           bool
	}{
		{"a curve key", good, true},
		{"none", "", false},
		{"a word", "brave", false},
		{"lower case", strings.ToLower(good), false},
		{"one character wrong", good[:10] + string(good[10]^1) + good[11:], false},
		{"a user's key", public, false},
		{"trick: a private seed", string(seed), false},
		{"trick: longer than a key", good + "AAAAAAAA", false},
		{"trick: a line break in it", good[:55] + "\n", false},
		{"trick: a line break behind it", good + "\n", false},
		{"trick: the point zero", lowOrderKey(t, 0), false},
		{"trick: the point one", lowOrderKey(t, 1), false},
	} {
		if err := seal.CheckKey(tt.public); (err == nil) != tt.ok || err != nil && !errors.Is(err, seal.ErrKey) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if _, err := seal.Seal(seal.NewSecret([]byte(canary)), tt.public); (err == nil) != tt.ok {
			t.Errorf("%s: sealed to it: %v", tt.name, err)
		}
	}
}

// The reason for the check: nkeys seals to a point of low order, and anyone can open the result.
func TestLowOrderKeyWouldLeak(t *testing.T) {
	t.Parallel()
	sender, err := nkeys.CreateCurveKeys()
	if err != nil {
		t.Fatal(err)
	}
	open, err := sender.Seal([]byte(canary), lowOrderKey(t, 0))
	if err != nil {
		t.Fatal(err)
	}
	other, err := nkeys.CreateCurveKeys()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := other.Open(open, lowOrderKey(t, 0)); err != nil || string(got) != canary {
		t.Errorf("nkeys now refuses it itself: %v", err)
	}
}

func TestValueLengths(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	for _, tt := range []struct {
		name  string
		value []byte
		want  error
	}{
		{"one byte", []byte{0}, nil},
		{"the longest", make([]byte, seal.MaxValue), nil},
		{"one too many", make([]byte, seal.MaxValue+1), seal.ErrTooLong},
		{"empty", []byte{}, seal.ErrEmpty},
		{"none", nil, seal.ErrEmpty},
	} {
		v, err := seal.Seal(seal.NewSecret(tt.value), k.Public())
		if !errors.Is(err, tt.want) || (tt.want == nil) != (err == nil) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.want != nil {
			continue
		}
		if got, err := seal.Open(k, v); err != nil || !bytes.Equal(got.Reveal(), tt.value) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, err := seal.Seal(seal.Secret{}, k.Public()); !errors.Is(err, seal.ErrEmpty) {
		t.Errorf("the zero value: %v", err)
	}
}

// TestSecretIsNeverPrinted tries every way in which Go formats a value, and common accidents.
func TestSecretIsNeverPrinted(t *testing.T) {
	t.Parallel()
	s := seal.NewSecret([]byte(canary))
	type inner struct{ hidden seal.Secret }
	type outer struct {
		Shown seal.Secret
		inner inner
	}
	o := outer{s, inner{s}}
	seen := map[string]string{}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b", "%T", "%p", "%!", "%08.3f"} {
		for name, v := range map[string]any{
			"value": s, "pointer": &s, "struct": o, "pointer to struct": &o,
			"list": []seal.Secret{s}, "map": map[string]seal.Secret{"k": s}, "any": []any{s},
		} {
			seen[verb+" of a "+name] = fmt.Sprintf(verb, v)
		}
	}
	seen["error"] = fmt.Errorf("failed with %w and %v", errors.ErrUnsupported, s).Error()
	for name, encode := range map[string]func(any) ([]byte, error){
		"json": json.Marshal, "yaml": yaml.Marshal,
		"msgpack": msgpack.Marshal,
	} {
		for _, v := range []any{s, &s, o, map[string]any{"k": s}, []seal.Secret{s}} {
			b, err := encode(v)
			if err != nil {
				t.Errorf("%s of %T: %v", name, v, err)
			}
			seen[fmt.Sprintf("%s of %T", name, v)] = string(b)
		}
	}
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewJSONHandler(&log, nil), slog.NewTextHandler(&log, nil)} {
		slog.New(h).Info("m", "secret", s, "in", o, slog.Group("g", "deep", &s))
	}
	seen["log"] = log.String()
	var bytesOf []string // as a list of numbers
	for _, b := range []byte(canary) {
		bytesOf = append(bytesOf, fmt.Sprint(b))
	}
	for how, text := range seen {
		for _, form := range []string{
			canary, canary[3:12], fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary),
			"Y2FuYXJ5", strings.Join(bytesOf[:4], " "), strings.Join(bytesOf[:4], ", "),
		} {
			if strings.Contains(text, form) {
				t.Errorf("%s: %s", how, text)
			}
		}
	}
	if got := fmt.Sprint(s); got != "[secret]" {
		t.Errorf("it calls itself %s", got)
	}
	if got := fmt.Sprint(string(s.Reveal())); !strings.Contains(got, canary) {
		t.Error("the control: what is revealed must be found")
	}
	k := newKey(t)
	for _, verb := range []string{"%v", "%+v", "%#v", "%x"} {
		if got := fmt.Sprintf(verb, k); got != k.Public() {
			t.Errorf("a key prints %s", got)
		}
	}
}

func TestWipeErasesEveryCopy(t *testing.T) {
	t.Parallel()
	raw := []byte(canary)
	s := seal.NewSecret(raw)
	same := s
	s.Wipe()
	if same.Reveal() != nil || bytes.Contains(raw, []byte("canary")) {
		t.Errorf("left of it: %q", raw)
	}
	seal.Secret{}.Wipe()
}

func FuzzOpen(f *testing.F) {
	k := newKey(f)
	good := sealCanary(f, k)
	f.Add(good.Sealed, good.From)
	f.Add([]byte{}, "")
	f.Add(good.Sealed[:30], good.From)
	f.Add(good.Sealed, good.From+"AAAAAAAA")
	f.Add(good.Sealed, lowOrderKey(f, 1))
	f.Fuzz(func(t *testing.T, data []byte, from string) {
		got, err := seal.Open(k, subjects.SecretValue{Sealed: data, From: from})
		if err == nil && string(got.Reveal()) != canary {
			t.Errorf("opened a value that was never sealed: %q", got.Reveal())
		}
		if err != nil && !errors.Is(err, seal.ErrSealed) {
			t.Errorf("another error: %v", err)
		}
	})
}

func FuzzCheckKey(f *testing.F) {
	f.Add(newKey(f).Public())
	f.Add("")
	f.Add(lowOrderKey(f, 0))
	f.Add(strings.Repeat("A", 56))
	value := seal.NewSecret([]byte(canary))
	f.Fuzz(func(t *testing.T, public string) {
		_, err := seal.Seal(value, public)
		if (err == nil) != (seal.CheckKey(public) == nil) {
			t.Errorf("%q: the check and the seal do not agree: %v", public, err)
		}
	})
}
