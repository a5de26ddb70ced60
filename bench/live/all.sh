#!/usr/bin/env bash
# Runs the stories, scenarios, plain questions and decisions of docs/live.md side by side: one stream on each Ollama
# server, so that a machine with a GPU takes minutes for what takes hours in a row. The servers share a store with the
# models of .ci/live.
#
#   bench/live/all.sh <programs> <results> <URL>...
#
# programs is a folder with conclave, live, plain and decide, built from one commit. Each stream writes <name>.out and
# <name>.err into results, and done says how each ended and after how many seconds. Streams take the URLs in turn.
# STREAMS="chat task" runs only these. Without it 13 servers are best. TRANSCRIPTS=1 keeps every request and response of
# the programs that take -transcript, in <name>.jsonl.
set -euo pipefail

if (($# < 3)); then
	sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
	exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
programs=$(realpath "$1")
mkdir -p "$2"
results=$(realpath "$2")
urls=("${@:3}")
chat=${CHAT:-qwen-coder:1.5b} embedder=${EMBEDDER:-all-minilm}
next=0 pids=()
: >"$results/done"

# stream <name> <command...>: starts a command in the background; URL in it becomes the address of the next server.
stream() {
	local name=$1 url=${urls[next % ${#urls[@]}]}
	shift
	if [[ -n ${STREAMS:-} && " $STREAMS " != *" $name "* ]]; then
		return
	fi
	next=$((next + 1))
	if [[ -n ${TRANSCRIPTS:-} && $1 == "$programs/live" ]]; then
		set -- "$1" -transcript "$results/$name.jsonl" "${@:2}"
	fi
	(
		code=0
		"${@/#URL/$url}" >"$results/$name.out" 2>"$results/$name.err" || code=$?
		echo "$name: exit $code after $SECONDS s" >>"$results/done"
	) &
	pids+=($!)
}

live=("$programs/live" -ollama URL -chat "$chat" -embeddings "$embedder" -conclave "$programs/conclave")
stream search "${live[@]}" -runs 5 stories/s1_*.yaml stories/s2_*.yaml stories/s3_*.yaml
stream fetch "${live[@]}" -runs 5 stories/s4_*.yaml stories/s5_*.yaml
stream grade "${live[@]}" -runs 5 stories/s6_*.yaml
stream pairs "${live[@]}" -runs 5 stories/s7_*.yaml
stream chat "${live[@]}" -runs 5 -scenarios chat
stream task "${live[@]}" -runs 3 -scenarios subtasks
stream task-rest "${live[@]}" -runs 2 -first 3 -scenarios subtasks
stream coding "${live[@]}" -runs 5 -scenarios coding
stream committee "${live[@]}" -runs 5 -scenarios committee
stream attachment "${live[@]}" -runs 5 -scenarios attachment,vectors
stream native "${live[@]}" -runs 1 -calls native stories/s[1-6]_*.yaml
stream plain "$programs/plain" -conclave "$programs/conclave" -ollama URL -model "$chat" -embeddings "$embedder" \
	-half held
stream decide "$programs/decide" -ollama URL -model "$chat" -half held -modes constrained,bare
wait "${pids[@]}" # these alone: servers may run in the background, too
cat "$results/done"
