#!/usr/bin/env bash
# Installs what is needed, builds once and runs every test that this machine can run.
#
#   tests/run.sh [--packaging] [--sanitizers] [--debug] [--odr] [--peers] [--fuzz] [--coverage] [--no-install]
#                [--chaos [DURATION [--store STORE] [--transport NAMES]]]
#
#   --packaging   also the tests that build wheels and Debian packages and install them, or Ray, into environments of
#                 their own: these take minutes, where every other test takes 20 s at most
#   --sanitizers  also the unit and integration tests under AddressSanitizer and UndefinedBehaviorSanitizer, and again
#                 under ThreadSanitizer
#   --debug       also the unit tests of the Debug preset, with assertions on
#   --odr         also checks that no two shipped types have the same name
#   --peers       also the tests with other projects (tests/peers): Megatron-Core, transformers, vLLM, SGLang, verl,
#                 slime, miles, NeMo-RL, SkyRL, ms-swift, Mooncake and Valkey, in environments that are created once
#                 (several GB each); the wheels in other Pythons; the client in one process with grpcio, protobuf,
#                 Flight, Ray and torch; the hand-off beside the peers' libraries, if RR_PEERS names the folder of
#                 their benchmark; and --packaging. It fails if a project was skipped that the README's table names as
#                 tested: RR_SLIME, RR_SLIME_MEGATRON and RR_NEMO_RL name source trees
#                 (tests/peers/{slime,nemo_rl}.sh --help)
#   --chaos       also the long runs that kill and stop processes. With a DURATION (90s, 20m, 3h), instead of these, runs
#                 the history checker for that time with each store: STORE is memory, spill, rocksdb, redis or
#                 redis-cluster, NAMES are values of ROUTING_REPLAY_TRANSPORT. It continues after the last seed in
#                 tests/chaos/RESULTS.md and adds its results there
#   --fuzz        also the long fuzzing runs, and the property tests on many more seeds
#   --coverage    also a coverage report
#   --no-install  does not install system packages
#
# Ends with ctest's own summary of the release suite. A test that fails while others run is repeated alone, and is named
# if it passes then. The exit status is not 0 if a test also failed when it was repeated.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tests/run.sh; }

install=yes
extras=()
without_packaging=(-LE '^packaging$')
chaos=() # Arguments of the history checker.
while [ $# -gt 0 ]; do
  argument=$1
  shift
  case $argument in
    --packaging) without_packaging=() ;;
    --peers) extras+=(peers) without_packaging=() ;;
    --chaos)
      extras+=(chaos)
      case ${1-} in [0-9]*) chaos=("$1") && shift ;; esac
      ;;
    --store | --transport)
      if [ ${#chaos[@]} -eq 0 ] || [ $# -eq 0 ]; then
        echo "$argument needs a name, and must come after --chaos DURATION" >&2
        exit 2
      fi
      chaos+=("$argument" "$1")
      shift
      ;;
    --sanitizers | --debug | --odr | --fuzz | --coverage) extras+=("${argument#--}") ;;
    --no-install) install= ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option $argument" >&2; usage >&2; exit 2 ;;
  esac
done

jobs=$(nproc)
failed=()

# These variables name the sources of peers that have no package. They are unset for the tests of ctest, because the
# server warns about RR_ variables that are not its settings.
sources=(RR_SLIME RR_SLIME_MEGATRON RR_NEMO_RL RR_PEERS)
ctest() { env "${sources[@]/#/--unset=}" ctest "$@"; }

# suite PRESET [ctest arguments]: builds the preset and runs its tests. Prints the skipped ones and the reasons before
# ctest's summary.
suite() {
  local preset=$1 status=0
  shift
  local build=build/$preset
  cmake --preset "$preset"
  cmake --build "$build" -j "$jobs"
  local log=$build/tests.log
  # Most tests wait for processes more than they compute.
  ctest --preset "$preset" -j $((2 * jobs)) --test-output-size-passed 1000000 --output-junit tests.xml "$@" |
    tee "$log" | sed -u '/tests passed, .* out of/,$d' || status=$?
  python3 tests/support/print_skipped.py "$build/tests.xml"
  echo
  [ ${#failed[@]} -eq 0 ] || echo "Failed before: ${failed[*]}"
  sed -n '/tests passed, .* out of/,$p' "$log"
  [ $status -eq 0 ] || alone "$preset" || failed+=("$preset")
}

# alone PRESET: repeats failed tests alone. A test that passes then depends on an idle machine: it is named, so that it
# can be fixed, but does not fail the run.
alone() {
  local names log=build/$1/Testing/Temporary/LastTestsFailed.log
  [ -s "$log" ] || return 1
  names=$(sed "s/^[0-9]*://" "$log" | paste -sd " ")
  echo "Once more, alone: $names"
  ctest --preset "$1" --rerun-failed -j 1 || return 1
  echo "Failed beside others and passed alone, to be fixed: $names"
}

sanitizers() {
  local preset
  for preset in asan tsan; do suite $preset -L '^(unit|integration)$'; done
}

odr() {
  cmake --preset odr
  local planted=build/odr/planted.log
  cmake --build build/odr --target odr_planted >"$planted" 2>&1 || true
  if ! grep -q "struct Planted.* violates the C++ One Definition Rule" "$planted"; then
    cat "$planted"
    echo "odr: two definitions of one type are not seen"
    failed+=(odr)
  fi
  cmake --build build/odr -j "$jobs" --target odr_check || failed+=(odr)
}

# long NAME SCRIPT [arguments]: runs one kind of long test. Exit status 77 means that it cannot run here; the script has
# printed the reason.
long() {
  local status=0
  "${@:2}" || status=$?
  [ $status -eq 0 ] || [ $status -eq 77 ] || failed+=("$1")
}

[ -z "$install" ] || deploy/install_build_deps.sh --tests
for extra in "${extras[@]}"; do
  case $extra in
    sanitizers) sanitizers ;;
    debug) suite dev -L '^unit$' ;;
    odr) odr ;;
    peers)
      for name in "${sources[@]}"; do
        [ -n "${!name:-}" ] || echo "--peers: $name is not set, so what needs it is skipped"
      done
      rm -rf build/peers/passed # Removes the rows of tests that did not pass this time.
      long pythons tests/peers/wheels.sh # Builds the wheels, because the tests of slime and verl install them as users do.
      long megatron tests/peers/megatron.sh
      long slime tests/peers/slime.sh --wheels build/release/wheels/dist
      long miles tests/peers/miles.sh
      long hf tests/peers/hf.sh
      long engines tests/peers/engines.sh
      long vllm tests/peers/vllm.sh
      long sglang tests/peers/sglang.sh
      long verl tests/peers/verl.sh --wheels build/release/wheels/dist
      long nemo-rl tests/peers/nemo_rl.sh
      long skyrl tests/peers/skyrl.sh
      long ms-swift tests/peers/ms_swift.sh
      long mooncake tests/peers/mooncake.sh
      long neighbours tests/peers/neighbours.sh
      long valkey tests/peers/valkey.sh
      long peers tests/bench/peers.sh
      [ ${#failed[@]} -gt 0 ] || python3 tests/peers/common/support.py || failed+=("rows of what was skipped")
      ;;
    chaos) long chaos tests/chaos/long.sh "${chaos[@]}" ;;
    fuzz) long fuzz tests/fuzz/long.sh ;;
    coverage) long coverage tests/coverage.sh ;;
  esac
done
suite release "${without_packaging[@]}"
[ ${#failed[@]} -eq 0 ]
