"""`pipeline diagnose` on real runs: each record against what the run itself knows, and nothing missing without a word."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import job, metrics, new_root
from safetensors.torch import load_file, save_file

from pipeline.contract.logit_cache import LogitCache
from stage2_student.diagnostics.diagnose import FROM_METRICS, FROM_STUDENTS, NAMES
from stage2_student.diagnostics.forward import token_table
from stage2_student.diagnostics.slices import Slice, first_documents
from stage2_student.diagnostics.token_table import AGREES, UNDECIDED
from stage2_student.job import StudentJob
from stage2_student.model.student import BlockStackForCausalLM
from stage2_student.train import train

RUN: dict[str, Any] = {"curriculum": "grow", "steps": 9, "eval_interval": 100, "snapshot_interval": 5, "gradient_norms_interval": 4}
NORMS = ("pre", "post")


@pytest.fixture(scope="module")
def trained(module_root) -> dict[str, StudentJob]:
    jobs = {norm: job(module_root, **RUN, norm=norm, name=f"{norm}-grow", model={"layers_per_block": 2}) for norm in NORMS}
    for each in jobs.values():
        train(each)
    return jobs


@pytest.fixture(params=NORMS)
def run(request, trained) -> StudentJob:
    return trained[request.param]


@pytest.fixture(scope="module")
def records(trained) -> dict[str, dict[str, Any]]:
    """What `pipeline diagnose --json` prints for each placement."""
    from contextlib import redirect_stdout
    from io import StringIO

    from pipeline.cli import run_command

    found = {}
    for norm, each in trained.items():
        with redirect_stdout(StringIO()) as out:
            assert run_command(["diagnose", each.run, "--root", str(each.folder.parents[1]), "--json"]) == 0
        found[norm] = json.loads(out.getvalue())
    return found


def copied(run: StudentJob, tmp_path: Path) -> Path:
    """The run and its cache in a root of its own, to be damaged."""
    root = new_root(tmp_path / "root", run.cache.path)
    shutil.copytree(run.folder, root / "runs" / run.run, ignore=shutil.ignore_patterns("diagnostics"))
    return root


def diagnosed(pipeline: Any, root: Path, run: StudentJob, *more: str, code: int = 0) -> dict[str, Any]:
    got, out, err = pipeline("diagnose", run.run, "--root", root, "--json", *more)
    assert got == code, err
    return json.loads(out) if code == 0 else {"error": err}


def last(record: dict[str, Any]) -> Any:
    return record["checkpoints"][-1]["found"]


# --- the whole ---


@pytest.mark.parametrize("norm", NORMS)
def test_every_record_is_printed_and_written_and_says_what_it_is(records, trained, norm):
    assert tuple(records[norm]) == NAMES and {"boundary", "removal", "transition", "token_types"} <= set(NAMES)
    for name, record in records[norm].items():
        path = trained[norm].folder / "diagnostics" / f"{name}.json"
        assert json.loads(path.read_text(), parse_constant=pytest.fail) == record
        assert record["definition"] and record["run"] == f"{norm}-grow" and "unfinished" not in record


@pytest.mark.parametrize("norm", NORMS)
def test_phase_ends_and_snapshots_are_looked_at_in_order(records, norm):
    for name in FROM_STUDENTS:
        places = [(c["phase"], c["step"], c["checkpoint"]) for c in records[norm][name]["checkpoints"]]
        assert places == [(p, 9 * p + s, c) for p in range(3) for s, c in ((5, f"step-{9 * p + 5:08d}"), (9, f"phase-{p}"))]
    assert [len(c["found"]) for c in records[norm]["boundary"]["checkpoints"]] == [2, 2, 3, 3, 4, 4]
    assert "5 rows" in records[norm]["boundary"]["on"]["about"] and "first 5 of 5" in records[norm]["agreement"]["on"]["about"]


@pytest.mark.parametrize("norm", NORMS)
def test_losses_are_those_of_the_runs_own_evaluation(records, trained, norm):
    """Per-token scores add up to what the training loss's kernels gave at each phase's end."""
    ends = {m["phase"]: m for m in metrics(trained[norm].folder, "val") if m["phase_step"] == 9}
    for name in ("agreement", "token_loss"):
        for checkpoint in records[norm][name]["checkpoints"][1::2]:
            found = checkpoint["found"].get("all", checkpoint["found"])
            assert found["ce"] == pytest.approx(ends[checkpoint["phase"]]["val/ce"], rel=1e-5)
            assert found["kl"] == pytest.approx(ends[checkpoint["phase"]]["val/kl"], rel=1e-5)
            assert found["n"] == ends[0]["val/tokens"]
    assert last(records[norm]["removal"])["ce"] == pytest.approx(ends[2]["val/ce"], rel=1e-5)  # the batch is the whole split


@pytest.mark.parametrize("norm", NORMS)
def test_records_from_metrics_are_the_runs(records, trained, norm):
    events = {m["phase"]: m["j0"] for m in metrics(trained[norm].folder, "event")}
    transitions = records[norm]["transition"]["found"]["transitions"]
    assert [t["probe"]["append_jump"] for t in transitions] == pytest.approx([events[1], events[2]])  # 8 documents are all there are
    assert [[step for step, _ in t["probe"]["points"]] for t in transitions] == [[-1, 0, 4, 8, 9]] * 2
    assert [phase["recorded_steps"] for phase in records[norm]["gradients"]["found"]] == [3, 3, 3]
    share = sum(part["share"] for part in records[norm]["gradients"]["found"][2]["parts"].values())
    assert share == pytest.approx(1, rel=1e-4)
    clipped = [m["optim/clipped"] for m in metrics(trained[norm].folder, "train") if m["phase"] == 1]
    assert records[norm]["gradients"]["found"][1]["clip_fraction"] == pytest.approx(np.mean(clipped))
    assert [len(phase["points"]) for phase in records[norm]["validation"]["found"]] == [2, 2, 2]


def test_only_what_was_asked_for_is_done(trained, tmp_path, pipeline):
    root = copied(trained["pre"], tmp_path)
    found = diagnosed(pipeline, root, trained["pre"], "--only", "removal", "--only", "transition", "--documents", "2")
    assert list(found) == ["removal", "transition"]
    assert {path.name for path in (root / "runs/pre-grow/diagnostics").iterdir()} == {"removal.json", "transition.json"}
    error = diagnosed(pipeline, root, trained["pre"], "--only", "removals", code=2)["error"]
    assert "--only removals: there is no such diagnostic" in error and "near_identity" in error


# --- a pass ---


@torch.no_grad()
def test_a_row_of_the_table_is_what_the_student_says_of_one_document_alone(run):
    student, validation = BlockStackForCausalLM.from_pretrained(run.record.phase(2)).eval(), LogitCache.open(run.cache, "validation")
    chosen = first_documents(validation.input_tokens, 5)
    table = token_table(student, validation, chosen, run.settings)
    assert len(table) == sum(chosen.lengths) == validation.record.input_tokens
    for index in range(5):
        rows, document = table.rows(table.document == index), validation[index]
        ids = torch.tensor(document.token_ids.tolist())
        taps: list[torch.Tensor] = []
        logits = student(ids[None], boundaries=taps).logits[0]
        assert rows.position.tolist() == list(range(len(ids))) and rows.token.tolist() == ids.tolist()
        assert rows.label.tolist() == [*ids[1:].tolist(), -1]
        ce = torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none")
        assert np.allclose(rows.ce[:-1], ce, atol=1e-5)
        rms = torch.stack([tap[0].double().square().mean(-1).sqrt() for tap in taps], dim=1)
        assert np.allclose(rows.rms, rms, rtol=1e-5)
        turns = torch.stack([torch.cosine_similarity(x[0].double(), y[0].double()).arccos() for x, y in zip(taps, taps[1:])], dim=1)
        assert np.allclose(rows.angle, turns / torch.pi, atol=1e-6)
        best = logits.argmax(-1)
        for t in range(document.tokens):
            teacher_ids, logprobs = document.row(t)
            if rows.agreement[t] == UNDECIDED:
                assert logprobs[0] == logprobs[1]
            else:
                assert (rows.agreement[t] == AGREES) == (teacher_ids[0] == best[t]) and logprobs[0] > logprobs[1]


def test_a_document_cut_short_has_its_first_tokens_only(run):
    student, validation = BlockStackForCausalLM.from_pretrained(run.record.phase(2)).eval(), LogitCache.open(run.cache, "validation")
    whole = token_table(student, validation, first_documents(validation.input_tokens, 2), run.settings)
    short = token_table(student, validation, Slice((0, 1), (5, 6), ""), run.settings)
    assert len(short) == 11 and short.has_label.sum() == 9 and sorted(short.position[~short.has_label].tolist()) == [4, 5]
    for index, length in ((0, 5), (1, 6)):
        mine, theirs = (table.rows(table.document == index) for table in (short, whole))
        assert np.allclose(mine.ce[:-1], theirs.ce[: length - 1], atol=1e-5)
        assert np.allclose(mine.rms, theirs.rms[:length], rtol=1e-5)


@torch.no_grad()
def test_a_pre_norm_block_that_writes_zero_costs_nothing_to_remove(trained, tmp_path, pipeline):
    root = copied(trained["pre"], tmp_path)
    edit(root / "runs/pre-grow/phases/phase-2", lambda name, tensor: tensor * 0 if silenced(name, 1) else tensor)
    found = diagnosed(pipeline, root, trained["pre"], "--only", "removal", "--only", "near_identity")
    first, second, third = last(found["removal"])["blocks"]
    assert (second["delta_ce"], second["standard_error"], second["angular_distance"]) == (0, 0, 0)
    assert abs(first["delta_ce"]) > 1e-3 and first["angular_distance"] > 0.01 and third["angular_distance"] > 0.01
    identity = last(found["near_identity"])[1]
    assert (identity["score"], identity["scale"], identity["angular_distance"]) == (1, 1, 0)
    assert last(found["near_identity"])[0]["score"] < 0.99


def silenced(name: str, block: int) -> bool:
    return name.startswith(f"blocks.{block}.") and name.endswith(("o_proj.weight", "down_proj.weight"))


def edit(folder: Path, change: Any) -> None:
    state = load_file(folder / "model.safetensors")
    save_file({name: change(name, tensor) for name, tensor in state.items()}, folder / "model.safetensors", {"format": "pt"})


@torch.no_grad()
def test_removing_a_post_norm_block_takes_its_norms_and_leaves_the_entry_norm(trained, tmp_path, pipeline):
    """By changing gains: those of the removed block's norms do not count any more, the entry norm's does."""
    run = trained["post"]
    student, validation = BlockStackForCausalLM.from_pretrained(run.record.phase(2)).eval(), LogitCache.open(run.cache, "validation")
    chosen = first_documents(validation.input_tokens, 3)

    def ce(bypass: tuple[int, ...] = (), scaled: str = "") -> np.ndarray:
        gains = [parameter for name, parameter in student.named_parameters() if scaled and scaled in name]
        for gain in gains:
            gain[::2] *= 1.5
        found = token_table(student, validation, chosen, run.settings, bypass=bypass).ce
        for gain in gains:
            gain[::2] /= 1.5
        return found

    names = [name for name, _ in student.blocks[1].named_parameters() if name.endswith(("attention_norm.weight", "mlp_norm.weight"))]
    assert len(names) == 4  # two norms a layer: six in the paper's blocks of three
    for name in names:
        assert not np.allclose(ce(scaled=f"blocks.1.{name}"), ce())
        assert np.array_equal(ce((1,), f"blocks.1.{name}"), ce((1,)))
    for bypass in ((0,), (1,), (2,), (0, 1, 2)):
        assert not np.allclose(ce(bypass, "boundary_norm"), ce(bypass))


# --- what is missing is said ---


def test_a_phase_without_weights_is_said_where_its_numbers_would_stand(trained, tmp_path, pipeline):
    root = copied(trained["pre"], tmp_path)
    phases = root / "runs/pre-grow/phases"
    shutil.rmtree(phases / "phase-0")
    weights = phases / "phase-1/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    edit(root / "runs/pre-grow/snapshots/step-00000005", lambda name, tensor: tensor)
    state = load_file(root / "runs/pre-grow/snapshots/step-00000005/model.safetensors")
    del state["blocks.0.layers.0.mlp_norm.weight"]
    save_file(state, root / "runs/pre-grow/snapshots/step-00000005/model.safetensors", {"format": "pt"})
    found = diagnosed(pipeline, root, trained["pre"])
    for name in FROM_STUDENTS:
        by_name = {c["checkpoint"]: c["found"] for c in found[name]["checkpoints"]}
        assert "is not there" in by_name["phase-0"] and "phase-1 cannot be read" in by_name["phase-1"]
        assert "lacks the weights blocks.0.layers.0.mlp_norm.weight" in by_name["step-00000005"]
        assert not isinstance(by_name["phase-2"], str)
    code, out, _ = pipeline("diagnose", "pre-grow", "--root", root, "--only", "removal")
    assert code == 0 and "removal.json" in out and "phase-0 is not there" in out


def test_weights_that_are_not_finite_are_said(trained, tmp_path, pipeline):
    root = copied(trained["post"], tmp_path)
    edit(root / "runs/post-grow/phases/phase-2", lambda name, tensor: tensor * float("nan") if name.startswith("blocks.1.") else tensor)
    found = diagnosed(pipeline, root, trained["post"])
    start, first, second, third = last(found["boundary"])
    assert isinstance(start["mean"], float) and isinstance(first["mean"], float)
    assert second["mean"] == third["kurtosis"] == last(found["agreement"])["ce"] == "not finite"
    blocks = last(found["removal"])["blocks"]
    assert [block["delta_ce"] for block in blocks] == ["not finite"] * 3
    for name in NAMES:
        json.loads((root / f"runs/post-grow/diagnostics/{name}.json").read_text(), parse_constant=pytest.fail)


def test_an_unfinished_run_is_diagnosed_as_far_as_it_goes(trained, tmp_path, pipeline):
    root = copied(trained["pre"], tmp_path)
    folder = root / "runs/pre-grow"
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "phases/phase-2")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["phase"] < 2]
    (folder / "metrics.jsonl").write_text("".join(kept) + '{"kind": "trai')
    found = diagnosed(pipeline, root, trained["pre"])
    assert all("not finished, its last record is of step 18" in record["unfinished"] for record in found.values())
    assert len(found["transition"]["found"]["transitions"]) == 1
    assert found["validation"]["found"][2]["last"] == "no evaluation on record"
    assert found["gradients"]["found"][2]["clip_fraction"] == "no step on record"
    assert "is not there" in last(found["boundary"])


def test_records_that_need_no_cache_are_not_lost_with_it(trained, tmp_path, pipeline):
    root = copied(trained["pre"], tmp_path)
    (root / "caches/tiny").unlink()
    (root / "runs/pre-grow/metrics.jsonl").write_text("not json\n")
    assert "tiny" in diagnosed(pipeline, root, trained["pre"], code=2)["error"]
    written = {path.stem: json.loads(path.read_text()) for path in (root / "runs/pre-grow/diagnostics").iterdir()}
    assert written.keys() == FROM_METRICS.keys()
    assert all("not JSON" in record["remark"] for record in written.values())


def test_a_run_that_is_not_there_and_another_cache_are_refused(trained, tmp_path, pipeline):
    code, _, err = pipeline("diagnose", "nobody", "--root", tmp_path)
    assert code == 2 and "holds no run" in err
    root = copied(trained["pre"], tmp_path)
    config = root / "runs/pre-grow/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"cache_fingerprint": "0123"}))
    assert "was trained on cache 0123" in diagnosed(pipeline, root, trained["pre"], "--only", "removal", code=2)["error"]
