"""Write one shard: payload first, under a name that carries its hash; then the sidecar that makes it count."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.contract.atomic_io import publish, temporary_path, write_json
from pipeline.contract.logit_cache.codec import decode, encode
from pipeline.contract.logit_cache.fidelity import measure, row_kl
from pipeline.contract.logit_cache.index import FileRecord, FreshForward, ShardRecord, Split, read_sidecar, shard_name, sidecar_path
from pipeline.contract.logit_cache.schema import DOCUMENT_SCHEMA, CachedDocument

ZSTD_LEVEL = 3


def write_shard(
    cache: Path,
    split: Split,
    index: int,
    documents: Sequence[CachedDocument],
    *,
    first_document: int,
    tokens_per_batch: int,
    skipped: dict[str, int],
    fresh_forward: FreshForward | None = None,
) -> ShardRecord:
    """Write and publish a shard; a payload of the same index that no longer counts is removed.

    Raises:
        PipelineError: when the disk is full; nothing that was there before is lost.
    """
    batches = [encode(documents[start:stop], first_document + start) for start, stop in batch_ranges(documents, tokens_per_batch)]
    payload = _publish_payload(cache / "shards", shard_name(split, index), batches)
    record = _summary(documents, batches, payload, split, index, skipped, fresh_forward)
    write_json(sidecar_path(cache, split, index), record.model_dump())
    for stale in (cache / "shards").glob(f"{shard_name(split, index)}-*.arrow"):
        if stale.name != payload.name:
            stale.unlink()
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


def _publish_payload(folder: Path, name: str, batches: list[pa.RecordBatch]) -> FileRecord:
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=ZSTD_LEVEL))
    with temporary_path(folder / name) as temporary:
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, DOCUMENT_SCHEMA, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        written = FileRecord.of(temporary)
        payload = written.model_copy(update={"name": f"{name}-{written.xxh3_128[:12]}.arrow"})
        publish(temporary, folder / payload.name)
    return payload


def _summary(
    documents: Sequence[CachedDocument],
    batches: Sequence[pa.RecordBatch],
    payload: FileRecord,
    split: Split,
    index: int,
    skipped: dict[str, int],
    fresh_forward: FreshForward | None,
) -> ShardRecord:
    restored = (decode(batch, row) for batch in batches for row in range(batch.num_rows))
    kl = np.concatenate([row_kl(exact, back) for exact, back in zip(documents, restored, strict=True)])
    return ShardRecord(
        split=split,
        index=index,
        payload=payload,
        documents=len(documents),
        tokens=sum(document.tokens for document in documents),
        input_tokens=sum(len(document.token_ids) for document in documents),
        entries=sum(len(document.ids) for document in documents),
        batch_rows=[batch.num_rows for batch in batches],
        mass_kept_sum=float(sum((1.0 - np.exp(document.tail_logprob, dtype=np.float64)).sum() for document in documents)),
        label_logprob_sum=float(sum(document.label_logprob.sum(dtype=np.float64) for document in documents)),
        fidelity=measure(kl),
        fresh_forward=fresh_forward,
        skipped=skipped,
    )


def finished_shard(cache: Path, split: Split, index: int, documents: int) -> ShardRecord | None:
    """The shard's record if its sidecar names a whole payload of `documents` documents, else None: it is to be redone."""
    record = read_sidecar(cache, split, index)
    if record is None or record.documents != documents or record.payload.problem(cache / "shards"):
        return None
    return record
