"""Write one shard: payload first, under a name that carries its hash; then the sidecar that makes it count."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_hexdigest

from pipeline.contract.logit_cache.codec import Codec
from pipeline.contract.logit_cache.columns import Columns
from pipeline.contract.logit_cache.fidelity import Fidelity, summarize
from pipeline.contract.logit_cache.index import (
    BatchRecord,
    FileRecord,
    FreshForward,
    MadeBy,
    ShardRecord,
    Split,
    pack_lengths,
    read_sidecar,
    shard_name,
    sidecar_name,
)
from pipeline.contract.logit_cache.masses import at_temperature
from pipeline.contract.logit_cache.measure import measure
from pipeline.contract.logit_cache.padded import read_rows
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.sealed import write_sealed
from pipeline.contract.store import Store

ARROW_MAGIC = b"ARROW1\0\0"


def write_shard(
    cache: Store,
    codec: Codec,
    split: Split,
    index: int,
    documents: Sequence[CachedDocument],
    *,
    made_by: MadeBy,
    first_document: int,
    tokens_per_batch: int,
    skipped: dict[str, int],
    fresh_forward: FreshForward | None = None,
) -> ShardRecord:
    """Write and publish a shard. A payload of the same index that no longer counts is left to `gc`.

    Raises:
        PipelineError: when the disk is full; nothing that was there before is lost.
    """
    ranges = list(batch_ranges(documents, tokens_per_batch))
    batches = [codec.encode(list(documents[start:stop]), first_document + start) for start, stop in ranges]
    payload, batch_records = _publish_payload(cache, codec, shard_name(split, index), batches)
    written = [(documents[start:stop], Columns(batch)) for (start, stop), batch in zip(ranges, batches, strict=True)]
    record = ShardRecord(
        split=split,
        index=index,
        made_by=made_by,
        payload=payload,
        lengths=pack_lengths([len(document.token_ids) for document in documents]),
        batches=batch_records,
        fidelity=_fidelity(codec, written, 1.0),
        fidelity_at={f"{tau:g}": _fidelity(codec, written, tau) for tau in codec.targets.other_temperatures},
        fresh_forward=fresh_forward,
        skipped=skipped,
        **_sums(documents),
    )
    write_sealed(cache, sidecar_name(split, index), record.model_dump())
    return record


def batch_ranges(documents: Sequence[CachedDocument], tokens_per_batch: int) -> Iterator[tuple[int, int]]:
    """Cut documents into consecutive record batches of about `tokens_per_batch` input tokens."""
    start, tokens = 0, 0
    for position, document in enumerate(documents):
        if position > start and tokens + len(document.token_ids) > tokens_per_batch:
            yield start, position
            start, tokens = position, 0
        tokens += len(document.token_ids)
    yield start, len(documents)


def _publish_payload(cache: Store, codec: Codec, name: str, batches: list[pa.RecordBatch]) -> tuple[FileRecord, list[BatchRecord]]:
    with cache.scratch(f"shards/{name}.arrow") as temporary:
        ends = _write_payload(temporary, codec, batches)
        records = _batch_records(temporary, batches, ends)
        written = FileRecord.of(temporary)
        payload = written.model_copy(update={"name": f"shards/{name}-{written.xxh3_128[:12]}.arrow"})
        cache.put(temporary, payload.name)
    return payload, records


def _write_payload(path: Path, codec: Codec, batches: list[pa.RecordBatch]) -> list[int]:
    """Where the first batch starts and each ends."""
    options = pa.ipc.IpcWriteOptions(compression=None if codec.zstd_level is None else pa.Codec("zstd", compression_level=codec.zstd_level))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, codec.schema, options=options) as writer:
        ends = [len(ARROW_MAGIC) + codec.schema.serialize().size]  # written with the first batch
        for batch in batches:
            writer.write_batch(batch)
            ends.append(sink.tell())
    return ends


def _batch_records(path: Path, batches: list[pa.RecordBatch], ends: list[int]) -> list[BatchRecord]:
    """As they lie in the file: `ends` is where the first batch starts and each ends."""
    with pa.memory_map(str(path)) as file:
        data = file.read_buffer()
        return [
            BatchRecord(documents=batch.num_rows, start=start, end=end, xxh3_64=xxh3_64_hexdigest(data[start:end]))
            for batch, start, end in zip(batches, ends[:-1], ends[1:], strict=True)
        ]


def _sums(documents: Sequence[CachedDocument]) -> dict[str, int | float]:
    return {
        "documents": len(documents),
        "tokens": sum(document.tokens for document in documents),
        "input_tokens": sum(len(document.token_ids) for document in documents),
        "entries": sum(len(document.ids) for document in documents),
        "mass_kept_sum": float(sum((1.0 - np.exp(document.tail_logprob, dtype=np.float64)).sum() for document in documents)),
        "label_logprob_sum": float(sum(document.label_logprob.sum(dtype=np.float64) for document in documents)),
        "entropy_sum": float(sum(document.entropy.sum(dtype=np.float64) for document in documents if document.entropy is not None)),
    }


def _fidelity(codec: Codec, written: list[tuple[Sequence[CachedDocument], Columns]], tau: float) -> Fidelity:
    """Every row as scored, against what its batch gives back at a temperature."""
    sampled = codec.targets.mode == "sampled"
    c = codec.targets.c if sampled else None
    return summarize(
        [
            measure(at_temperature(exact, tau), read_rows(codec, columns, row, tau), c)
            for documents, columns in written
            for row, exact in enumerate(documents)
        ],
        sampled,
    )


def finished_shard(cache: Store, split: Split, index: int, documents: int, made_by: MadeBy, *, deep: bool = False) -> ShardRecord | None:
    """The shard's record if its sidecar names a whole payload of `documents` documents, else None: it is to be done again."""
    record = read_sidecar(cache, split, index)
    if record is None or (record.documents, record.made_by) != (documents, made_by):
        return None
    return None if record.payload.problem(cache, deep=deep) else record
