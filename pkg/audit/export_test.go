package audit

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"conclave/subjects"
)

func exportSource(t testing.TB, src Source) ([]byte, Summary) {
	t.Helper()
	var b bytes.Buffer
	sum, err := Export(t.Context(), src, &b)
	must(t, err)
	return b.Bytes(), sum
}

func TestOpenExportReturnsExportedSource(t *testing.T) {
	s := newFixture(t)
	s.msgs = append(s.msgs,
		Stored{Seq: 11, Subject: "audit.BROKER.b1", Data: []byte("garbage")},
		Stored{Seq: 12, Subject: "no subject at all <&>", Data: []byte{}})
	file, sum := exportSource(t, source(s.msgs))
	if sum.Messages != 12 || sum.Records != 13 || sum.Chains != 4 || sum.SHA256 != hexHash(sha256.Sum256(file)) {
		t.Errorf("summary %+v", sum)
	}
	if want := MergeHeads(s.heads); !slices.Equal(sum.Heads, want) {
		t.Errorf("heads %+v, want %+v", sum.Heads, want)
	}
	src, err := OpenExport(iotest.OneByteReader(bytes.NewReader(file)))
	must(t, err)
	var got []Stored
	for st, err := range src.Messages {
		must(t, err)
		got = append(got, st)
	}
	if src.First != 1 || src.Last != 12 || !slices.EqualFunc(got, s.msgs, func(a, b Stored) bool {
		return a.Seq == b.Seq && a.Subject == b.Subject && bytes.Equal(a.Data, b.Data)
	}) {
		t.Fatalf("came back as %+v", got)
	}
	for _, err := range src.Messages {
		if err == nil {
			t.Fatal("the second walk found nothing wrong")
		}
	}
	if n := bytes.Count(file, []byte("\n")); n != 14 || !bytes.Contains(file, []byte(`"action":"tool.call"`)) {
		t.Errorf("%d lines, or nothing for a person:\n%s", n, file)
	}
}

func TestExportOfIntactLogVerifies(t *testing.T) {
	s := newFixture(t)
	file, sum := exportSource(t, source(s.msgs))
	for _, heads := range [][]subjects.AuditHead{s.heads, sum.Heads} {
		src, err := OpenExport(bytes.NewReader(file))
		must(t, err)
		wantOK(t, verifySource(t, src, heads))
	}
	empty, _ := exportSource(t, source(nil))
	src, err := OpenExport(bytes.NewReader(empty))
	must(t, err)
	if r := verifySource(t, src, nil); r.OK {
		t.Error("an empty trail is no trail")
	}
}

func TestDamagedExportIsRejected(t *testing.T) {
	s := newFixture(t)
	file, _ := exportSource(t, source(s.msgs))
	lines := bytes.SplitAfter(file, []byte("\n"))
	lines = lines[:len(lines)-1]
	replace := func(old, new string) []byte {
		if !bytes.Contains(file, []byte(old)) {
			t.Fatalf("no %s in the export", old)
		}
		return bytes.Replace(file, []byte(old), []byte(new), 1)
	}
	for _, tc := range []struct {
		name string
		file []byte
	}{
		{"empty", nil},
		{"no header", bytes.Join(lines[1:], nil)},
		{"other format", replace("export 1", "export 2")},
		{"other last sequence", replace(`"last":10`, `"last":9`)},
		{"cut in a line", file[:len(file)/2]},
		{"cut between lines", bytes.Join(lines[:5], nil)},
		{"footer missing", bytes.Join(lines[:len(lines)-1], nil)},
		{"line end missing", file[:len(file)-1]},
		{"line missing", bytes.Join(slices.Delete(slices.Clone(lines), 4, 5), nil)},
		{"lines swapped", bytes.Join(append(append(slices.Clone(lines[:4]), lines[5], lines[4]), lines[6:]...), nil)},
		{"line twice", bytes.Join(slices.Insert(slices.Clone(lines), 4, lines[4]), nil)},
		{"second header", bytes.Join(slices.Insert(slices.Clone(lines), 4, lines[0]), nil)},
		{"second footer", append(slices.Clone(file), lines[len(lines)-1]...)},
		{"text after the footer", append(slices.Clone(file), "x"...)},
		{"what a user reads altered, the data not", replace(`"status":"ok"`, `"status":"failed"`)},
		{"unknown field", replace(`{"message":{`, `{"message":{"note":"x",`)},
		{"field twice", replace(`{"message":{`, `{"message":{"seq":9,`)},
		{"blank added", replace(`{"message":{`, `{"message": {`)},
		{"sequence altered", replace(`"message":{"seq":4,`, `"message":{"seq":14,`)},
		{"subject altered", replace(`audit.BROKER.b1`, `audit.BROKER.b7`)},
		{"head in the footer altered", replace(`"chain":"b1","seq":4,"hash":"`, `"chain":"b1","seq":3,"hash":"`)},
		{"count in the footer altered", replace(`"records":13`, `"records":12`)},
		{"empty line", bytes.Join(slices.Insert(slices.Clone(lines), 3, []byte("\n")), nil)},
		{"line that is null", bytes.Join(slices.Insert(slices.Clone(lines), 3, []byte("null\n")), nil)},
		{
			"two values in a line",
			bytes.Join(slices.Insert(slices.Clone(lines), 3, append(bytes.TrimSpace(lines[3]), lines[4]...)), nil),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			src, err := OpenExport(bytes.NewReader(tc.file))
			if err == nil {
				var r Report
				r, err = Verify(t.Context(), src, s.heads, testOptions)
				if r.OK {
					t.Error("the report says OK")
				}
			}
			if !errors.Is(err, ErrExport) {
				t.Fatalf("error %v does not wrap ErrExport", err)
			}
		})
	}
}

func TestExportReturnsSourceError(t *testing.T) {
	s := newFixture(t)
	broken := errors.New("broken")
	src := source(s.msgs)
	src.Messages = func(yield func(Stored, error) bool) { yield(Stored{}, broken) }
	if _, err := Export(t.Context(), src, io.Discard); !errors.Is(err, broken) {
		t.Error(err)
	}
	r, w := io.Pipe()
	r.CloseWithError(broken)
	if _, err := Export(t.Context(), source(s.msgs), w); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, err := OpenExport(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, err := Export(t.Context(), source([]Stored{{Seq: 1, Subject: "\xff"}}), io.Discard); err == nil ||
		!strings.Contains(err.Error(), "not text") {
		t.Error(err)
	}
}

func FuzzOpenExport(f *testing.F) {
	data, _, err := EncodeGenesis(beforeRecord("a").Time, subjects.AuditGenesis{})
	must(f, err)
	var b bytes.Buffer
	_, err = Export(f.Context(), source([]Stored{{Seq: 1, Subject: GenesisSubject, Data: data}}), &b)
	must(f, err)
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:b.Len()/2])
	f.Fuzz(func(t *testing.T, file []byte) {
		src, err := OpenExport(bytes.NewReader(file))
		if err != nil {
			return
		}
		var msgs []Stored
		for st, err := range src.Messages {
			if err != nil {
				return
			}
			msgs = append(msgs, st)
		}
		again := source(msgs)
		again.StreamRange, again.Others = src.StreamRange, src.Others
		if got, _ := exportSource(t, again); !bytes.Equal(got, file) {
			t.Fatalf("%q became %q", file, got)
		}
	})
}
