#!/usr/bin/env bash
# Copies everything that needs a GPU into a folder that runs on a machine with only CUDA's driver and glibc 2.36 or
# later.
#
#   tests/support/cuda/carry.sh BUILD FOLDER
#
# BUILD is a release tree with its GPU programs built. FOLDER/run.sh, which works from any place, then runs the tests,
# alone and under compute-sanitizer if available, the golden files, and the benchmark, whose figures are written to
# FOLDER/results. If PYTHON (python3) has torch, it also runs the tests of torch's operators, with transformers those of
# its models and the benchmark of whole steps, and with megatron-core those of GPTModel.
set -euo pipefail
build=$1 folder=$2
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
# The programs that CTest runs on a GPU, and whether it also runs them under compute-sanitizer.
listed=$(ctest --test-dir "$build" -L '^cuda$' --show-only=json-v1 2>/dev/null | python3 -c '
import json, sys
found = {test["name"]: test for test in json.load(sys.stdin)["tests"]}
for name, test in found.items():
    labels = next(p["value"] for p in test["properties"] if p["name"] == "LABELS")
    if labels == ["cuda"] and len(command := test.get("command", [])) < 2:
        if not command:
            sys.exit(f"{name} is not built")
        print(command[0], name + "_memcheck" in found)
')
tests=($(awk '{ print $1 }' <<<"$listed"))

mkdir -p "$folder"/{bin,lib,python,tests/bench/gpu,tests/support/cuda,tests/golden,tests/peers}
awk '{ sub(".*/", "", $1); print $1 }' <<<"$listed" >"$folder/tests.txt"
awk '$2 == "True" { sub(".*/", "", $1); print $1 }' <<<"$listed" >"$folder/sanitized.txt"
cp "${tests[@]}" "$build"/bin/{gpu_bench,golden_cuda_runner,routing-replay-server} "$folder/bin"
cp "$source/tests/bench/gpu.sh" "$folder/tests/bench"
cp "$source"/tests/bench/gpu/{unfused,step}.py "$folder/tests/bench/gpu"
cp "$source/tests/support/cuda/sanitize.sh" "$folder/tests/support/cuda"
cp -r "$source/tests/golden/data" "$folder/tests/golden"
cp -r "$source"/trainer_plugin/python/{src,tests} "$source/client/python/src" "$folder/python"
cp -r "$source"/tests/peers/{common,megatron} "$folder/tests/peers"
cp "$build"/lib/librouting_replay{,_trainer_cuda,_test_host}.so "$folder/lib"
# The libraries of the C and C++ runtimes come from the target machine.
for program in "$folder"/bin/*; do LD_LIBRARY_PATH=$build/lib ldd "$program"; done | awk '$2 == "=>" { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libgcc_s|libstdc\+\+|libpthread|libdl|librt)\.so' | xargs cp -t "$folder/lib"

cat >"$folder/run.sh" <<'RUN'
#!/usr/bin/env bash
# Runs every test and every figure that needs a GPU. Exit status 1 if one fails; skipped ones print the reason.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
failed=0
# try COMMAND…
try() {
  echo "== $*"
  "$@"
  local status=$?
  [ $status -eq 0 ] || [ $status -eq 77 ] || { echo "FAILED ($status): $*"; failed=1; }
}
mapfile -t tests <tests.txt
mapfile -t sanitized <sanitized.txt
for test in "${tests[@]}"; do try "bin/$test" --gtest_brief=1; done
try bin/golden_cuda_runner --dir tests/golden/data
export PYTHONPATH=python/src:python/tests:tests/peers${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
export ROUTING_REPLAY_LIBRARY_DIR=$PWD/lib
python=${PYTHON:-python3}
for test in ops device hf; do try "$python" python/tests/${test}_test.py; done
if "$python" -c 'import megatron.core' 2>/dev/null; then try "$python" tests/peers/megatron/gpt_test.py; fi
for tool in memcheck racecheck; do
  for test in "${sanitized[@]}"; do try tests/support/cuda/sanitize.sh $tool "bin/$test" --gtest_brief=1; done
done
try tests/bench/gpu.sh --build . --no-build --out results --python "$python"
export ROUTING_REPLAY_SERVER=$PWD/bin/routing-replay-server
try "$python" tests/bench/gpu/step.py --json results/step.json
exit $failed
RUN
chmod +x "$folder/run.sh"
du -sh "$folder"
