"""DeepSpeed, in this file alone: processes, ZeRO 0 to 3, float32 masters and accumulation, one engine a phase.

A structural change or another set of trained parameters is never made on a live engine (ZeRO 1 and 2 error, ZeRO 3
silently trains nothing): a phase takes the float32 weights out and a new engine takes them in.
"""

import gc
import math
import os
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from pipeline.contract.errors import RunError
from pipeline.contract.manifest.student import StudentManifest
from pipeline.contract.process import changed_environment, prepare_cpu_process
from stage2_student.model.student import BlockStackForCausalLM
from stage2_student.support import Engine, require_supported

State = dict[str, Tensor]

INIT_TIMEOUT = timedelta(minutes=10)

PERSISTENT_VECTORS = 10
"""ZeRO 3 keeps parameters of up to so many times `hidden_size` elements whole: norms and biases, not worth a gather."""

BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's default for gradients reduced at once. It reserves a buffer of that many, so a smaller model gets a smaller one."""


def resolve_precision(settings: StudentManifest) -> torch.dtype:
    """The dtype of weights and activations; masters and accumulation are float32 always.

    Raises:
        RunError: it does not go with the ZeRO stage and offload.
    """
    name = settings.precision
    if name == "auto":
        name = "bfloat16" if torch.cuda.is_available() else "float32"
    require_supported(Engine(settings.zero, name, settings.offload))
    return torch.bfloat16 if name == "bfloat16" else torch.float32


class Processes:
    """The processes of a run: joined from torchrun, deepspeed or SLURM, or this one alone."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            prepare_cpu_process()
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")  # DeepSpeed's calls, not ours
        import deepspeed
        import deepspeed.comm as comm

        # gloo does the collectives; this op would compile for minutes and wants ninja and g++
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        if not comm.is_initialized():
            with _launched():
                deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo", verbose=False, timeout=INIT_TIMEOUT)
        self.rank, self.world_size = comm.get_rank(), comm.get_world_size()
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
        self._comm = comm

    def sum(self, values: Tensor) -> Tensor:
        """Add up `values` over all ranks, in place."""
        if self.world_size > 1:
            self._comm.all_reduce(values)
        return values

    def from_first(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        values = [value]
        if self.world_size > 1:
            torch.distributed.broadcast_object_list(values, device=self.device)
        return values[0]

    def barrier(self) -> None:
        if self.world_size > 1:
            self._comm.barrier()


def under_slurm() -> bool:
    """Whether srun started this process, and the job's script says where all meet."""
    return {"SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


@contextmanager
def _launched() -> Iterator[None]:
    """The variables of a launcher: SLURM's under their usual names, and of a process started by hand its own, for as long as this takes.

    What such a process starts later would take them for its own launcher's. LOCAL_RANK stays: DeepSpeed's engines read it.
    """
    if "RANK" in os.environ:
        yield
        return
    if under_slurm():
        os.environ |= {"RANK": os.environ["SLURM_PROCID"], "WORLD_SIZE": os.environ["SLURM_NTASKS"]}
        os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
        yield
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    os.environ["LOCAL_RANK"] = "0"
    with changed_environment({"RANK": "0", "WORLD_SIZE": "1"} | meeting):
        yield


class StudentEngine:
    """One phase's DeepSpeed engine around a model.

    Attributes:
        frozen: on rank 0 under bfloat16, the float32 weights of what is not trained, as given; what is saved must not round them.
    """

    def __init__(
        self, model: BlockStackForCausalLM, settings: StudentManifest, processes: Processes, is_trained: Callable[[str], bool]
    ) -> None:
        import deepspeed

        self.settings, self.processes, self.dtype = settings, processes, resolve_precision(settings)
        # casting below makes new storage, so these keep the float32 values
        masters = model.state_dict() if self.dtype != torch.float32 else {}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_trained(name))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            trained,
            lr=0.0,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_epsilon,
            weight_decay=settings.weight_decay,
            fused=settings.offload != "none",  # on the host's cores; DeepSpeed's own would be compiled first
        )
        self._linear = torch.nn.functional.linear  # ZeRO 3 puts its own there, for the whole process
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=cast(Any, model).to(processes.device),
            model_parameters=trained,
            optimizer=optimizer,
            config=self._config(model.config.hidden_size, sum(parameter.numel() for parameter in trained)),
        )
        self._set_masters(masters)
        keeps = processes.rank == 0
        self.frozen: State = {name: tensor for name, tensor in masters.items() if keeps and not is_trained(name)}

    def _config(self, hidden_size: int, elements: int) -> dict[str, Any]:
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,  # the loop owns micro-batches and their weights
            "gradient_accumulation_steps": 1,
            "gradient_clipping": self.settings.gradient_clip,
            "zero_optimization": self._zero_config(hidden_size, elements),
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 2**31,
        }
        if self.dtype == torch.bfloat16:
            config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
        return config

    def _zero_config(self, hidden_size: int, elements: int) -> dict[str, Any]:
        host = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
        config: dict[str, Any] = {"stage": self.settings.zero, "reduce_bucket_size": min(BUCKET_ELEMENTS, elements)}
        if self.settings.zero == 3:
            config["stage3_param_persistence_threshold"] = PERSISTENT_VECTORS * hidden_size
        if self.settings.offload != "none":
            config["offload_optimizer"] = host
        if self.settings.offload == "all":
            config["offload_param"] = host
        return config

    @property
    def model(self) -> BlockStackForCausalLM:
        return self.engine.module

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]

    def _set_masters(self, masters: State) -> None:
        """DeepSpeed makes its masters from the bfloat16 weights; give them back the bits that were lost."""
        from deepspeed.utils import safe_set_full_fp32_param

        for name, parameter in self._trained() if masters else []:
            safe_set_full_fp32_param(parameter, masters[name].to(parameter.device))

    def masters(self) -> State:
        """The float32 weights of all trained parameters, on rank 0's CPU; elsewhere empty. Every rank calls it."""
        from deepspeed.utils import safe_get_full_fp32_param

        gathered: State = {}
        for name, parameter in self._trained():
            full = parameter if self.settings.zero == 0 else safe_get_full_fp32_param(parameter)
            if self.processes.rank == 0:
                gathered[name] = full.detach().to("cpu", copy=True)
        return gathered

    def weights(self) -> State:
        """The float32 weights of the whole student under its state dict's names, on rank 0's CPU; elsewhere empty. Every rank calls it."""
        gathered = self.masters()
        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad:
                full = self._full(parameter)
                if self.processes.rank == 0:
                    gathered[name] = self.frozen.get(name, full.to("cpu", torch.float32, copy=True))
        return gathered

    def _full(self, parameter: torch.nn.Parameter) -> Tensor:
        """A parameter's whole value in the engine's dtype. Every rank calls it."""
        from deepspeed.runtime.zero import GatheredParameters

        with GatheredParameters([parameter], enabled=self.settings.zero == 3):
            return parameter.detach().clone()

    def gradients(self) -> State:
        """Each trained parameter's gradient over the global batch, between the last backward and the step, before clipping."""
        from deepspeed.utils import safe_get_full_grad

        if self.settings.zero == 0:
            return {name: parameter.grad.detach().cpu().clone() for name, parameter in self._trained() if parameter.grad is not None}
        return {name: safe_get_full_grad(parameter).detach().cpu().clone() for name, parameter in self._trained()}

    def gradient_norms(self, part: Callable[[str], str]) -> dict[str, float]:
        """L2 norms of what `gradients` gives, by the part of the model a name belongs to. Every rank calls it.

        One parameter is gathered at a time: a whole gradient would not fit where ZeRO is needed.
        """
        from deepspeed.utils import safe_get_full_grad

        squares: dict[str, float] = {}
        for name, parameter in self._trained():
            gradient = parameter.grad if self.settings.zero == 0 else safe_get_full_grad(parameter)
            if gradient is not None:
                norm = float(torch.linalg.vector_norm(gradient.detach(), dtype=torch.float64))
                squares[part(name)] = squares.get(part(name), 0.0) + norm**2
        return {name: square**0.5 for name, square in squares.items()}

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Accumulate one micro-batch's gradient; `last` marks the end of the step on this rank.

        `loss` is the micro-batch's sum over the *global* batch's tokens; DeepSpeed averages over ranks, which is undone here.
        """
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss * self.processes.world_size, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> float:
        """Clip, update, forget the gradients; return the gradient's global L2 norm before clipping.

        A norm that is not finite is returned as inf, and nothing is updated: no weight, no moment, on no rank.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if self.settings.zero == 0:  # DeepSpeed reports no norm there, and would update with a NaN
            norm = float(torch.nn.utils.get_total_norm([p.grad for _, p in self._trained() if p.grad is not None]))
            if not math.isfinite(norm):
                self.engine.zero_grad()
                return math.inf
            self.engine.step()
            return norm
        self.engine.step()
        return float(self.engine.get_global_grad_norm()) if self.engine.was_step_applied() else math.inf

    def optimizer_is_fresh(self) -> bool:
        """Whether no update has left any state."""
        inner = getattr(self.optimizer, "optimizer", self.optimizer)
        return not any(torch.is_tensor(value) and value.any() for state in inner.state.values() for value in state.values())

    def save(self, folder: Path, client_state: dict[str, Any]) -> None:
        """Write model, optimizer and `client_state`. Every rank calls it."""
        self.engine.save_checkpoint(str(folder), tag="engine", client_state=client_state, save_latest=False)

    def load(self, folder: Path, *, universal: bool = False) -> dict[str, Any]:
        """Read what `save` wrote under the same ZeRO stage and world size, or any if it was made `universal`; return its client state.

        Raises:
            RunError: when DeepSpeed cannot read it.
        """
        self.engine._config.load_universal_checkpoint = universal
        try:
            path, client_state = self.engine.load_checkpoint(str(folder), tag="engine")
        except Exception as error:  # torch and DeepSpeed raise many kinds for a damaged file
            path, problem = None, str(error).splitlines()[0][:120]
        else:
            problem = "its files are missing"
        if path is None:
            raise RunError(f"{folder}: cannot be loaded ({problem}); remove the folder to resume from the checkpoint before it")
        return client_state

    def close(self) -> None:
        """Give the memory back before the next phase's engine asks for it."""
        self.engine.destroy()
        torch.nn.functional.linear = self._linear
        del self.engine, self.optimizer
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
