"""int32 ids and float16 log-probabilities, in the order of falling probability: for people who have the disk, and to compare with."""

import numba
import numpy as np
import pyarrow as pa

from pipeline.contract.logit_cache.columns import DOCUMENT_FIELDS, Columns, field, record_batch, tail_name
from pipeline.contract.logit_cache.masses import kept_mass
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.shard import Targets


class PlainCodec:
    """`raw` or `plain`: they differ in compression alone."""

    def __init__(self, name: str, targets: Targets) -> None:
        self.name, self.targets = name, targets
        self.zstd_level = 3 if name == "plain" else None
        tails = [field(tail_name(tau), pa.float32()) for tau in (1.0, *targets.other_temperatures)]
        optional = [field("entropy", pa.float32())] * targets.entropy + [field("drawn", pa.uint8())] * (targets.mode == "sampled")
        entries = [field("counts", pa.uint8()), field("ids", pa.int32()), field("logprobs", pa.float16())]
        self.schema = pa.schema([*DOCUMENT_FIELDS, field("label_logprob", pa.float32()), *tails, *optional, *entries])

    def encode(self, documents: list[CachedDocument], first_index: int) -> pa.RecordBatch:
        names = [name for name in self.schema.names[2:] if not name.startswith("tail_logprob_")]
        columns: dict[str, list[np.ndarray]] = {name: [getattr(document, name) for document in documents] for name in names}
        columns |= {tail_name(tau): [document.other_tails[tau] for document in documents] for tau in self.targets.other_temperatures}
        return record_batch(self.schema, first_index, columns)

    def counts(self, columns: Columns) -> np.ndarray:
        return columns.flat("counts")[0]

    def fill(
        self, columns: Columns, documents: np.ndarray, temperature: float, ids: np.ndarray, weights: np.ndarray, places: np.ndarray
    ) -> None:
        for document, place in zip(documents, places, strict=True):
            counts = columns.part("counts", document)
            certain = counts - columns.part("drawn", document) if "drawn" in columns else counts
            values = np.exp(columns.part("logprobs", document).astype(np.float32) / np.float32(temperature))
            mass = kept_mass(columns.part(tail_name(temperature), document))
            _pad(columns.part("ids", document), values, counts, certain, mass, self.targets.c, ids[place], weights[place])


@numba.njit(cache=True)
def _pad(flat_ids, values, counts, certain, mass, drawn_weight, ids, weights):
    place = 0
    for row in range(len(counts)):
        total = 0.0
        for j in range(certain[row]):
            total += values[place + j]
        factor = mass[row] / total if total > 0 else 0.0
        for j in range(counts[row]):
            ids[row, j] = flat_ids[place + j]
            weights[row, j] = values[place + j] * factor if j < certain[row] else drawn_weight  # float16 would be up to 0.2% off
        place += counts[row]
