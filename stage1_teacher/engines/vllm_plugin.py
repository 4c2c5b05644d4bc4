"""vLLM's entry point `vllm.general_plugins`: every process that vLLM starts learns the architectures of `vllm_models.py`."""

ARCHITECTURES = {"qwen3": "Qwen3KeptEntries", "qwen2": "Qwen2KeptEntries", "llama": "LlamaKeptEntries"}
"""By `model_type` of a teacher's config."""


def register() -> None:
    """Make the architectures known by name; the models are imported when one of them is asked for."""
    from vllm import ModelRegistry

    for name in set(ARCHITECTURES.values()) - ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(name, f"stage1_teacher.engines.vllm_models:{name}")


def register_here(architecture: str) -> None:
    """Make one known by its class, in the process that is about to run it: of a name vLLM asks another process, for ten seconds."""
    from vllm import ModelRegistry

    from stage1_teacher.engines import vllm_models

    ModelRegistry.register_model(architecture, getattr(vllm_models, architecture))
