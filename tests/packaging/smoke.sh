#!/usr/bin/env bash
# smoke.sh: starts the installed routing-replay-server, puts rows with the installed rrctl and reads them back, bit for
# bit. It needs neither Python nor NumPy.
set -euo pipefail
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

routing-replay-server --version
rrctl --version
routing-replay-server --listen 127.0.0.1:0 --endpoint-file "$work/endpoint" 2>"$work/log" &
server=$!
for _ in $(seq 600); do
  [ ! -s "$work/endpoint" ] || break
  kill -0 "$server" 2>/dev/null || { cat "$work/log"; fail "the server did not start"; }
  sleep 0.05
done
ROUTING_REPLAY_ENDPOINT=$(cat "$work/endpoint")
export ROUTING_REPLAY_ENDPOINT

# An .npy file of one-byte ids [6 rows, 2 layers, 4], and the lines that rrctl must print for it.
{
  printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "{'descr': '|u1', 'fortran_order': False, 'shape': (6, 2, 4), }"
  for row in {0..5}; do
    for layer in 0 1; do
      experts=()
      for slot in {0..3}; do experts+=($(((row * 7 + layer * 11 + slot * 32) % 128))); done
      # shellcheck disable=SC2059
      printf "$(printf '\\x%02x' "${experts[@]}")"
      (IFS=, && echo "{\"row\":$row,\"layer\":$layer,\"experts\":[${experts[*]}]}" >>"$work/expected")
    done
  done
} >"$work/rows.npy"

rrctl put smoke a/1 "$work/rows.npy" --experts 128 --seal
rrctl -w json get smoke a/1 | grep -o '{.*}' | sort >"$work/got"
sort "$work/expected" | diff - "$work/got" || fail "other ids came back"
rrctl -w json stat smoke a/1 | grep -q '"rows":6,.*"sealed":true' || fail "stat tells something else"
rrctl verify smoke
kill -TERM "$server"
wait "$server" || fail "the server ended with $?"
server=
echo "smoke: PASSED"
