"""The files of manifests/launch are what they say: each is parsed, and the SLURM scripts are run, SLURM's own commands emulated."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from shards import payloads

CHECKOUT = Path(__file__).parents[2]
LAUNCH = CHECKOUT / "manifests/launch"
SCRIPTS = sorted(LAUNCH.glob("*.sbatch"))
NUMBER, TIME = r"\d+", r"\d+:\d\d:\d\d"
OPTIONS = {
    "job-name": r"[\w-]+",
    "array": r"\d+-\d+(%\d+)?",
    "nodes": NUMBER,
    "ntasks-per-node": NUMBER,
    "gpus-per-node": NUMBER,
    "cpus-per-task": NUMBER,
    "mem": r"\d+[KMGT]?",
    "time": TIME,
    "signal": r"(B:)?TERM@\d+",
    "requeue": None,
    "output": r"[\w%-]+\.log",
}
"""Of sbatch's manual, the ones used, with the form of their values."""

SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
for ((rank = 0; rank < SLURM_NTASKS; rank++)); do
    SLURM_STEP_ID=0 SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & started+=($!)
done
for process in "${started[@]}"; do wait "$process" || exit $?; done
"""


@pytest.fixture
def slurm(tmp_path):
    """Run a script as SLURM would on this machine: `slurm(script, **variables)` gives the started process."""
    commands = {
        "pipeline": f'#!/bin/bash\nexec {sys.executable} -m pipeline "$@"\n',
        "scontrol": '#!/bin/bash\n[[ "$1 $2" == "show hostnames" && -n "$3" ]] || exit 1\nprintf "127.0.0.1\\nother\\n"\n',
        "srun": SRUN,
    }
    for name, script in commands.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(script, encoding="utf-8")
        path.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    paths = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}

    def run(script, **variables):
        environment = kept | paths | {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node[1-2]"} | variables
        return subprocess.Popen(
            ["bash", LAUNCH / script], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return run


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return out


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_one_that_sbatch_and_bash_take(script):
    """Every option is one of sbatch's, before the first command, where alone sbatch reads them."""
    subprocess.run(["bash", "-n", script], check=True)
    lines = script.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/bin/bash" and os.access(script, os.X_OK)
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [(number, line) for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert len(options) > 5 and options[-1][0] < first_command
    for _, line in options:
        name, value = re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line).groups()
        form = OPTIONS[name]
        assert value is None if form is None else re.fullmatch(form, value), line


def test_two_tasks_of_the_array_make_what_one_worker_makes(pipeline, slurm, inputs, tmp_path):
    assert pipeline("cache-teacher", "--shard", inputs / "tiny.yaml", "--root", tmp_path / "alone")[0] == 0
    variables = {"SHARD": str(inputs / "tiny.yaml"), "PIPELINE_HOME": str(tmp_path / "array"), "ARGUMENTS": "--json"}
    tasks = [slurm("cache-teacher-array.sbatch", SLURM_ARRAY_TASK_ID=str(task), **variables) for task in range(2)]
    summaries = [json.loads(finish(task)) for task in tasks]
    assert payloads(tmp_path / "array") == payloads(tmp_path / "alone")
    assert sum(summary["shards_written"] for summary in summaries) >= 33
    assert not list(tmp_path.glob("array/caches/tiny/leases/*"))


def test_two_tasks_of_a_training_join_one_run(pipeline, slurm, inputs, tmp_path):
    """As srun starts them: by SLURM's variables, and one reports."""
    assert pipeline("cache-teacher", "--shard", inputs / "tiny.yaml", "--root", tmp_path / "root")[0] == 0
    small = ["steps=1", "model.blocks=2", "model.layers_per_block=1", "global_batch_size=4", "name=joined"]
    variables = {
        "SHARD": str(inputs / "tiny.yaml"),
        "PIPELINE_HOME": str(tmp_path / "root"),
        "NORM": "post",
        "CURRICULUM": "grow",
        "ARGUMENTS": " ".join(["--json", *(f"--set {each}" for each in small)]),
        "SLURM_NTASKS": "2",
    }
    out = finish(slurm("train-nodes.sbatch", **variables))
    (result,) = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert (result["norm"], result["curriculum"], result["steps_executed"]) == ("post", "grow", 2)
    (start,) = json.loads((tmp_path / "root/runs/joined/provenance.json").read_text(encoding="utf-8"))
    assert start["processes"] == 2


def test_ray_takes_the_cluster_file():
    """By its own schema and checks, as `ray up` does first."""
    pytest.importorskip("ray")
    from ray.autoscaler._private.util import prepare_config, validate_config

    text = (LAUNCH / "ray-cluster.yaml").read_text(encoding="utf-8")
    config = prepare_config(yaml.safe_load(text))
    validate_config(config)
    assert len(config["provider"]["worker_ips"]) == config["max_workers"]
    with pytest.raises(Exception, match=r"setup_comands.* unexpected"):
        validate_config(prepare_config(yaml.safe_load(text.replace("setup_commands", "setup_comands"))))


def test_the_commands_that_the_cluster_file_names_are_ours(pipeline):
    """Their options are known: an unknown shard is what stops them."""
    named = re.findall(r"^#   pipeline (.*)$", (LAUNCH / "ray-cluster.yaml").read_text(encoding="utf-8"), re.M)
    assert len(named) == 2
    for command in named:
        known = command.replace("fineweb-10bt", "no-such-shard").replace("paper-2x2", "no-such-experiment").replace("ray", "local", 1)
        arguments = re.sub(r"--ray-address \S+", "", known).split()
        code, _, err = pipeline(*arguments)
        assert code == 2 and "no-such-" in err, err
