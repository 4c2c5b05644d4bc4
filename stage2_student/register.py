"""Make transformers' Auto classes know the student, so that `AutoModelForCausalLM.from_pretrained(folder)` loads one."""

from transformers import AutoConfig, AutoModelForCausalLM

from stage2_student.model.config import BlockStackConfig
from stage2_student.model.student import BlockStackForCausalLM


def register() -> None:
    """Register the config and the model; calling it again changes nothing."""
    AutoConfig.register(BlockStackConfig.model_type, BlockStackConfig, exist_ok=True)
    AutoModelForCausalLM.register(BlockStackConfig, BlockStackForCausalLM, exist_ok=True)
