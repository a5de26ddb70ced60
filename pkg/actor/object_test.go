package actor

import "testing"

// TestCheckJSONObject is about arguments: the policy and the tool must read them alike.
func TestCheckJSONObject(t *testing.T) {
	for _, c := range []struct {
		name, in string
		ok       bool
	}{
		{"empty", `{}`, true},
		{"nested", `{"a":{"b":[{"c":1},{"c":2}]},"b":"}{\""}`, true},
		{"doubled key", `{"path":"/ok","path":"/etc/shadow"}`, false},
		{"doubled deep below", `{"a":{"b":[{"c":1,"c":2}]}}`, false},
		{"doubled by an escape", `{"a":1,"\u0061":2}`, false},
		{"doubled but for the case", `{"path":"/ok","Path":"/etc/shadow"}`, false},
		{"doubled by a long s", `{"secret":1,"ſecret":2}`, false},
		{"doubled by a Kelvin sign", `{"key":1,"\u212aey":2}`, false},
		{"a list", `[]`, false},
		{"a word", `null`, false},
		{"two values", `{} {}`, false},
		{"nothing", ``, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := CheckJSONObject([]byte(c.in)); (err == nil) != c.ok {
				t.Errorf("%s: %v", c.in, err)
			}
		})
	}
}
