"""vLLM's entry point `vllm.general_plugins`: every process that vLLM starts learns the architectures of `vllm_models.py`."""

ARCHITECTURES = {"qwen3": "Qwen3KeptEntries", "qwen2": "Qwen2KeptEntries", "llama": "LlamaKeptEntries"}
"""By `model_type` of a teacher's config."""


def register() -> None:
    """Make the architectures known by name; the models are imported when one of them is asked for."""
    from vllm import ModelRegistry

    for name in ARCHITECTURES.values():
        ModelRegistry.register_model(name, f"stage1_teacher.engines.vllm_models:{name}")
