#!/usr/bin/env bash
# Which lines of shipped C++ and Python the tests of a build with counters reach, without those of packaging.
#
#   tests/coverage.sh [--peers | --report]
#
#   --peers   also counts what the tests with frameworks (tests/peers) reach of the Python, which takes an hour more:
#             trainers' interfaces and integrations run nowhere else. RR_SLIME, RR_SLIME_MEGATRON and RR_NEMO_RL as in
#             tests/run.sh
#   --report  only writes the report of the last run; builds nothing and runs no test
#
# Writes build/coverage/report: cpp.txt, python.txt, and uncovered.txt with the lines of each file that no test reaches.
# Processes that a test kills leave no counts. install_test is left out, because what it builds has no counters. Device
# code and what only a GPU runs is not built. Needs gcovr and python3-coverage (Debian packages), and an hour. Exit
# status 1: less than 92 % of the lines of either.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

least=92
build=$PWD/build/coverage report=$PWD/build/coverage/report
peers=
case ${1-} in
  '' | --report) ;;
  --peers) peers=yes ;;
  -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tests/coverage.sh; exit 0 ;;
  *) echo "unknown option $1" >&2; exit 2 ;;
esac
for tool in gcovr python3-coverage; do
  command -v $tool >/dev/null || { echo "coverage: $tool is not installed"; exit 77; }
done
mkdir -p "$report"

if [ "${1-}" != --report ]; then
  cmake --preset coverage >/dev/null
  cmake --build "$build" -j "$(nproc)"
  find "$build" -name '*.gcda' -delete
  rm -rf "$build/python" && mkdir -p "$build/python"
  {
    printf '[run]\nparallel = true\nsigterm = true\ndata_file = %s\nsource =\n' "$build/python/data"
    printf '  %s\n' "$PWD"/{client,trainer_plugin,server}/python/src
  } >"$build/python/settings"
  # usercustomize.py starts the counters in every Python process of the tests. It is in the user's site folder because
  # tests change every other place from which Python would load it, such as PYTHONPATH.
  site=$build/python/$(/usr/bin/python3 -c 'import site; print(site.getusersitepackages().removeprefix(site.getuserbase()))')
  mkdir -p "$site"
  echo 'import coverage; coverage.process_startup()' >"$site/usercustomize.py"
  PYTHONUSERBASE=$build/python COVERAGE_PROCESS_START=$build/python/settings \
    ctest --preset coverage -LE '^packaging$' -E '^install_test$' -j "$(nproc)" --output-junit tests.xml || echo "coverage: a test failed"
fi
if [ -n "$peers" ]; then
  # Coverage must not use sys.settrace here, because torch.compile does not compile while it is in use.
  export COVERAGE_PROCESS_START=$build/python/settings COVERAGE_CORE=sysmon
  for framework in hf megatron engines vllm sglang verl slime miles nemo_rl skyrl ms_swift; do
    tests/peers/$framework.sh || echo "coverage: tests/peers/$framework.sh ended with $?"
  done
fi

gcovr --root . -j "$(nproc)" "$build" --gcov-ignore-parse-errors --exclude-throw-branches \
  --filter '(client|proto|server|trainer_plugin)/' --exclude '.*(_test\.cc|/testing/|/conformance/|/fixtures/)' \
  --txt "$report/cpp.txt" --json-summary "$report/cpp.json" --json "$report/lines.json"
(cd "$build/python" && python3-coverage combine --keep --data-file all data.* >/dev/null)
python3-coverage report --data-file "$build/python/all" --show-missing >"$report/python.txt"
/usr/bin/python3 - "$report" $least <<'END'
import json, re, sys
from pathlib import Path

report, least = Path(sys.argv[1]), float(sys.argv[2])
uncovered = []
for file in json.loads((report / "lines.json").read_text())["files"]:
    lines = [line["line_number"] for line in file["lines"] if line["count"] == 0 and not line.get("gcovr/noncode")]
    if lines:
        uncovered.append((len(lines), file["file"], lines))
with open(report / "uncovered.txt", "w") as out:
    for count, name, lines in sorted(uncovered, reverse=True):
        print(count, name, *lines, file=out)
cpp = json.loads((report / "cpp.json").read_text())
python = float(re.search(r"^TOTAL.* (\d+)%", (report / "python.txt").read_text(), re.M)[1])
print(f"coverage: C++ {cpp['line_percent']} % of {cpp['line_total']} lines, Python {python:.0f} %; see {report}")
sys.exit(cpp["line_percent"] < least or python < least)
END
