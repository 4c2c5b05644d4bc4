"""A small fixed slice of validation documents, evaluated often after a phase begins, so that what an append costs and what the
restarted learning rate costs are seen apart. The training loss has other documents at every step and cannot show either.
"""

import math

from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.manifest.student import StudentManifest
from pipeline.contract.run_record import Metrics
from stage2_student.engine import Processes
from stage2_student.evaluate import evaluate
from stage2_student.model.student import BlockStackForCausalLM

FIRST_AFTER_START = 4


def is_probed(phase_step: int, steps: int, settings: StudentManifest) -> bool:
    """Whether a phase of `steps` is probed after `phase_step` updates: 0, 4, 8, 16, 32, ... and the end.

    A phase's end is step -1 of the next one: the same documents, the stack before the append.
    """
    power_of_two = phase_step & (phase_step - 1) == 0
    return bool(settings.probe_documents) and (phase_step in (0, steps) or (phase_step >= FIRST_AFTER_START and power_of_two))


def probe(model: BlockStackForCausalLM, validation: LogitCache, settings: StudentManifest, processes: Processes) -> Metrics:
    """CE, KL, KD in nats a target token on the first `probe_documents` documents; None where one is not finite. Every rank calls it."""
    found = evaluate(model, validation, settings, processes, range(min(settings.probe_documents, len(validation))))
    values = {"probe/ce": found.ce, "probe/kl": found.kl, "probe/kd": found.kd}
    return {name: value if math.isfinite(value) else None for name, value in values.items()} | {"probe/tokens": found.tokens}
