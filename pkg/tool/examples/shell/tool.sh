#!/usr/bin/env bash
# A tool for Conclave: change DEFINITION and run, then start it with: bash tool.sh It needs the
# commands nats (the command line client of NATS) and jq. Calls run one after the other, each of at
# most 128 KiB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# What the model reads. After a change the tool waits for you: conclave tool accept word_count
DEFINITION=$(cat <<'END'
{
  "name": "word_count",
  "description": "Counts the words and characters of a text.",
  "parameters": {
    "type": "object",
    "properties": {"text": {"type": "string", "description": "the text"}},
    "required": ["text"],
    "additionalProperties": false
  },
  "version": "1"
}
END
)

# run runs one call, whose arguments are the JSON object on standard input. Its output is the
# result. If it fails, its messages on standard error are the error. Both are for the model.
run() {
	local text
	text=$(jq -r .text)
	printf '%d words, %d characters\n' "$(wc -w <<<"$text")" "${#text}"
}

# call runs the call in NATS_REQUEST_BODY and prints the reply. Arguments are data, never part of a
# command. run is a process of its own, because bash ignores set -e in a condition.
call() {
	local files
	files=$(mktemp -d)
	if jq -c .args <<<"$NATS_REQUEST_BODY" 2>"$files/messages" |
		bash tool.sh run >"$files/result" 2>>"$files/messages"; then
		jq -cRs '{result: rtrimstr("\n")}' "$files/result"
	else
		jq -cRs '{error: {code: "tool_failed", text: .}}' "$files/messages"
	fi
	rm -r "$files"
}

# check_commands says which of the commands nats and jq are missing, and how to install them.
check_commands() {
	local missing=0
	if ! command -v nats >/dev/null; then
		echo "tool.sh: the command nats is missing; install it with:" \
			"go install github.com/nats-io/natscli/nats@latest, or from https://github.com/nats-io/natscli/releases" >&2
		missing=1
	fi
	if ! command -v jq >/dev/null; then
		echo "tool.sh: the command jq is missing; install the package jq of your system, or see" \
			"https://jqlang.org/download" >&2
		missing=1
	fi
	return "$missing"
}

# serve announces the definition and answers calls until it is stopped.
serve() {
	check_commands
	local name server key ca principal
	name=$(jq -r .name <<<"$DEFINITION")
	IFS=$'\t' read -r server key principal ca < <(jq -r '[.server, .key, .principal, .ca // ""] | @tsv' conclave.json)
	local client=(nats --no-context --server "$server" --nkey "$key" --connection-name "$principal" \
		${ca:+--tlsca "$ca"})
	trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
	trap 'exit 0' INT TERM
	"${client[@]}" reply "tool.request.$name" --queue "$principal" --command 'bash tool.sh call' >/dev/null &
	# for a broker that started later
	"${client[@]}" reply "\$SRV.INFO.$principal" --queue "$principal" --command 'bash tool.sh info' >/dev/null &
	"${client[@]}" pub --no-templates "tool.schema.$name" "$(jq -c . <<<"$DEFINITION")"
	echo "serving $name at $server; Ctrl-C ends it"
	wait -n # until one of them ends
}

# info prints the reply to a request for information about the service.
info() {
	jq -c --arg principal "$(jq -r .principal conclave.json)" '{
	  type: "io.nats.micro.v1.info_response", name: $principal, id: $principal, version: "1.0.0",
	  metadata: {("definition." + .name): tojson}
	}' <<<"$DEFINITION"
}

"${1:-serve}"
