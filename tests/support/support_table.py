"""Generates the README's table of supported projects from the tests themselves.

    support_table.py --check     exit status 1 if the README's table differs
    support_table.py --write     writes the table into the README

A version is "tested" if a test runs with that version itself, and "by recorded form" if a test compares with recorded
output of that version's code (tests/golden/data). Nothing else may be claimed.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
GOLDEN = ROOT / "tests/golden/data"
BEGIN = "<!-- tests/support/support_table.py --write -->\n"
END = "<!-- end of the table -->\n"
FRAMEWORKS = ("verl", "slime", "miles", "SkyRL", "NeMo-RL", "ms-swift", "prime-rl")


def text(path: str) -> str:
    return (ROOT / path).read_text()


def only(pattern: str, path: str) -> str:
    """The pattern's group; all matches in the file must agree."""
    found = re.findall(pattern, text(path), re.MULTILINE)
    assert len(set(found)) == 1, f"{path} has {found or 'nothing'} for {pattern}"
    return found[0]


def golden_source(path: Path) -> dict[str, str]:
    zstd = ctypes.CDLL("libzstd.so.1")
    zstd.ZSTD_getFrameContentSize.restype = ctypes.c_ulonglong
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    data = path.read_bytes()
    size = zstd.ZSTD_getFrameContentSize(data, ctypes.c_size_t(len(data)))
    buffer = ctypes.create_string_buffer(size)
    assert zstd.ZSTD_decompress(buffer, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data))) == size, path
    return json.loads(buffer.raw)["source"]


def recorded() -> dict[str, list[str]]:
    """Returns, by project, the versions or commits whose recorded output the tests use."""
    found: dict[str, set[str]] = {}
    for path in GOLDEN.rglob("*.zst"):
        source = golden_source(path)
        project = source["project"].split("/")[-1].split(" (")[0]
        version = source.get("version") or source["commit"].split(";")[0]
        request = re.search(r"pull request \d+", version)
        number = re.search(r"\d+\.\d+\.\d+", version)
        commit = re.search(r"\b[0-9a-f]{10,40}\b", version)
        said = commit[0][:12] if commit else number[0] if number else ""
        if request:
            said = f"{said} ({request[0]})".strip() if said else request[0]
        if said:
            found.setdefault(project, set()).add(said)
    return {project: sorted(versions) for project, versions in found.items()}


def shown() -> dict[str, dict[str, list[str]]]:
    """Returns, by project and version, what the last run of its tests showed (tests/peers/common/support.py)."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in text("tests/peers/passed.txt").splitlines():
        project, version, what, changed = line.split("\t")
        said = what if changed == "nothing" else f"{what} (changed: {changed})"
        found.setdefault(project, {}).setdefault(version, []).append(said)
    return found


def oldest_vllm() -> str:
    source = text("client/python/src/routing_replay/engines/vllm.py")
    return re.findall(r"^\| RequestOutput \| ([^|]+?) \|", source, re.M)[0].split()[0]


def peers() -> list[tuple[str, ...]]:
    """Returns a row (project, tested, by recorded form, untested) for each project, even if no test of it passed."""
    by, tested = recorded(), shown()
    untested = {
        "vLLM": f"GPUs; others from {oldest_vllm()} on, by the fields of their answers",
        "SGLang": "GPUs; others, by the fields of their answers",
        "Valkey": "TLS; others",
    }
    names = {"vLLM": "vllm", "SGLang": "sglang", "Megatron-Core": "Megatron-LM", "NeMo-RL": "RL"}
    rows = []
    for name in ("vLLM", "SGLang", "Megatron-Core", "transformers", *FRAMEWORKS, "Valkey"):
        versions = [f"{version}: {', '.join(what)}" for version, what in tested.pop(name, {}).items()]
        ran = any("source" not in version for version in versions)
        rest = untested.get(name, "GPUs; others" if ran else "the framework running")
        rows.append((name, "; ".join(versions), ", ".join(by.get(names.get(name, name), [])), rest))
    assert not tested, f"tests/peers/passed.txt names projects that the table has no row for: {sorted(tested)}"
    return rows


def platforms() -> list[tuple[str, ...]]:
    floor = only(r'^requires-python = ">=([0-9.]+)"$', "client/python/pyproject.toml")
    pythons = only(r"^versions='([^']+)'$", "tests/peers/wheels.sh").split()
    floor_glibc = sorted(
        each.replace("_", ".") for each in set(re.findall(r"^wheel (2_\d+) ", text("deploy/build_wheels.sh"), re.M))
    )
    cuda = re.findall(r"RR_CUDA_ARCHITECTURES ([0-9 ]+)\)", text("CMakeLists.txt"))
    architectures = ", ".join(f"sm_{each}" for part in cuda for each in part.split())
    kubernetes = only(r'^VERSIONS = \(("[^)]+")\)$', "tests/deploy/kubernetes_test.py").replace('"', "")
    return [
        ("Redis", "that of Debian 12 (7.0), alone and as a cluster", "", "others"),
        ("Kubernetes", "", f"the schemas of {kubernetes}", "a cluster"),
        (
            "Python",
            ", ".join(sorted({*pythons, "3.11"}, key=lambda each: int(each[2:]))),
            "",
            f"others from {floor} on",
        ),
        (
            "glibc",
            "2.36 (Debian 12)",
            "",
            f"from {floor_glibc[0]} on (the server: {floor_glibc[-1]}), by the symbols that the wheels ask for",
        ),
        ("packages", "Debian 12", "", "others"),
        ("CPU", "x86-64", "", "all others"),
        (
            "GPU",
            "H100 and H200 (sm_90): kernels, also under compute-sanitizer; Megatron-Core 0.19.2's GPTModel in one "
            "process; models of transformers 5.17",
            "",
            f"others (kernels are compiled for {architectures}); several GPUs, NCCL",
        ),
    ]


def table() -> str:
    lines = ["| | tested | by recorded form | untested |", "|---|---|---|---|"]
    for row in (*peers(), *platforms()):
        lines.append("| " + " | ".join(cell or "-" for cell in row) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    readme = README.read_text()
    before, rest = readme.split(BEGIN)
    now, after = rest.split(END)
    if sys.argv[1:] == ["--write"]:
        README.write_text(before + BEGIN + table() + END + after)
        return 0
    if sys.argv[1:] != ["--check"]:
        print(__doc__)
        return 2
    if now == table():
        return 0
    print("README.md says something else than the tests do; tests/support/support_table.py --write writes:\n" + table())
    return 1


if __name__ == "__main__":
    sys.exit(main())
