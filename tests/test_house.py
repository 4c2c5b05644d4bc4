"""The house stands: imports point one way, without a cycle; nothing heavy on the way to `pipeline --help`; what ships parses."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("pipeline", "stage1_teacher", "stage2_student")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
VLLM = {f"stage1_teacher.engines.vllm_{part}" for part in ("plugin", "models", "engine", "start")}
ONLY_IN = {"deepspeed": {"stage2_student.engine"}, "vllm": VLLM, "ray": {"pipeline.executors.ray"}}
LIGHT = [
    name
    for name in MODULES
    if name.startswith(("pipeline.contract", "pipeline.report", "pipeline.watch", "pipeline.workflow", "pipeline.cli"))
]


def imports(path: Path, *, lazy: bool = True) -> set[str]:
    """Modules that a file imports; `lazy` counts those inside functions too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if lazy else iter(tree.body)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer(module: str) -> int:
    """0 is the ground floor; a module may import its own layer and those below."""
    if module.startswith("pipeline.contract"):
        return 0
    if module.startswith("pipeline.executors"):
        return 1
    if module.startswith(("stage1_teacher", "stage2_student", "pipeline.report")):
        return 2
    if module in ("pipeline.cli", "pipeline.__main__"):
        return 5
    return 4 if module.startswith("pipeline.commands") else 3


def wrong_arrows(module: str, imported: set[str]) -> list[str]:
    ours = {name for name in imported if name in MODULES}
    upward = {name for name in ours if layer(name) > layer(module)}
    sideways = {name for name in ours if layer(module) == layer(name) == 2 and name.split(".")[:2] != module.split(".")[:2]}
    sideways = {name for name in sideways if name.split(".")[0] != module.split(".")[0] or "report" in (name + module)}
    return sorted(upward | sideways)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module):
    assert not wrong_arrows(module, imports(MODULES[module])), module


def test_a_wrong_arrow_is_seen():
    assert wrong_arrows("pipeline.contract.errors", {"stage1_teacher.capture"})
    assert wrong_arrows("stage1_teacher.capture", {"stage2_student.train"})
    assert wrong_arrows("pipeline.report.build", {"stage2_student.train"})
    assert wrong_arrows("pipeline.executors.local", {"stage1_teacher.workers"})
    assert not wrong_arrows("stage1_teacher.capture", {"stage1_teacher.targets", "pipeline.contract.errors"})


def find_cycle(graph: dict[str, set[str]]) -> list[str] | None:
    """A cycle of module-level imports, if there is one."""
    state: dict[str, int] = {}

    def visit(node: str, trail: list[str]) -> list[str] | None:
        state[node] = 1
        for child in sorted(graph[node]):
            if state.get(child) == 1:
                return [*trail, node, child]
            if child not in state and (cycle := visit(child, [*trail, node])):
                return cycle
        state[node] = 2
        return None

    return next((cycle for node in graph if node not in state and (cycle := visit(node, []))), None)


def test_no_cycle():
    graph = {module: {name for name in imports(path, lazy=False) if name in MODULES and name != module} for module, path in MODULES.items()}
    assert find_cycle(graph) is None
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]


@pytest.mark.parametrize("library", ONLY_IN)
def test_heavy_engines_are_imported_in_one_place(library):
    users = {module for module, path in MODULES.items() if any(name.split(".")[0] == library for name in imports(path))}
    assert users == ONLY_IN[library]


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_why_it_exists(module):
    path = MODULES[module]
    text = path.read_text(encoding="utf-8")
    assert not text or ast.get_docstring(ast.parse(text)), path


def test_init_files_are_empty_but_for_the_two_public_surfaces():
    full = {name for name, path in MODULES.items() if path.name == "__init__.py" and path.read_text(encoding="utf-8")}
    assert full == {"pipeline.contract.logit_cache", "stage2_student.loss"}


HEAVY = ("torch", "vllm", "deepspeed", "transformers", "matplotlib", "ray")


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(ast.literal_eval(done.stdout.splitlines()[-1]))


def test_help_loads_nothing_heavy():
    assert loaded_after("from pipeline.cli import run_command\nrun_command(['--help'])") == set()
    assert loaded_after("import torch") >= {"torch"}  # the check itself can see


def test_the_ground_floor_and_the_report_load_nothing_heavy():
    assert loaded_after("; ".join(f"import {name}" for name in LIGHT)) == set()
