"""Peak dense bfloat16 FLOP/s of devices by the name that CUDA gives them; one that is not here has no MFU.

From the makers' data sheets, which quote sparse figures beside or instead of dense ones: halved where only those are given. MFU against a
wrong peak is worse than none, so nothing is guessed from a name that only resembles one of these.
"""

import torch

DENSE_BFLOAT16 = {
    # NVIDIA A100 Tensor Core GPU data sheet: 312 TFLOP/s
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    # NVIDIA H100 Tensor Core GPU data sheet: 1,979 (SXM), 1,513 (PCIe), 1,671 (NVL) TFLOP/s with sparsity
    "NVIDIA H100 80GB HBM3": 989.5e12,
    "NVIDIA H100 PCIe": 756.5e12,
    "NVIDIA H100 NVL": 835.5e12,
    # NVIDIA H200 Tensor Core GPU data sheet: 1,979 (SXM), 1,671 (NVL) TFLOP/s with sparsity
    "NVIDIA H200": 989.5e12,
    "NVIDIA H200 NVL": 835.5e12,
    # NVIDIA L40S data sheet: 362 TFLOP/s; L4: 242 with sparsity
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
    # NVIDIA DGX B200 data sheet: 36 PFLOP/s with sparsity of eight GPUs
    "NVIDIA B200": 2.25e15,
    # AMD Instinct MI300X data sheet: 1,307.4 TFLOP/s
    "AMD Instinct MI300X": 1307.4e12,
}


def peak_flops(device: str, dtype: torch.dtype) -> float | None:
    """The peak of one device; None for one that is not listed, and for other types than bfloat16."""
    return DENSE_BFLOAT16.get(device) if dtype == torch.bfloat16 else None
