"""Deal the stream of raw documents to splits and shards: a function of the documents alone, never of workers or batches."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from pipeline.contract.logit_cache.index import Split
from pipeline.contract.manifest.shard import Documents
from stage1_teacher.documents.base import RawDocument


@dataclass
class ShardUnit:
    """The documents of one shard, as text: the unit of work, of resume and of loss."""

    split: Split
    index: int
    texts: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def split_of(kept: int, documents: Documents) -> Split:
    """The split of the `kept`-th document that is not skipped."""
    turn, rest = divmod(kept, documents.validation.every)
    return "validation" if rest == 0 and turn < documents.validation.documents else "train"


def shard_units(source: Iterable[RawDocument], documents: Documents, per_shard: int, wanted: Collection[Split]) -> Iterator[ShardUnit]:
    """Yield shards of the `wanted` splits in order, each when the next one begins, the last ones at the end.

    Reading stops at `documents.limit` training documents. A skipped document is counted with the next kept one, those
    after the last kept one with that one.
    """
    filling: dict[Split, ShardUnit] = {split: ShardUnit(split, 0) for split in wanted}
    skipped: Counter[str] = Counter()
    kept = train = 0
    for raw in source:
        if raw.text is None:
            skipped[raw.skip or "unknown"] += 1
            continue
        split = split_of(kept, documents)
        kept, train = kept + 1, train + (split == "train")
        if split in filling:
            yield from _add(filling, split, raw, skipped, per_shard)
        skipped = Counter()
        if train == documents.limit:
            break
    last = split_of(max(kept - 1, 0), documents)
    for unit in filling.values():
        if unit.texts:
            unit.skipped += skipped if unit.split == last else Counter()
            yield unit


def _add(filling: dict[Split, ShardUnit], split: Split, raw: RawDocument, skipped: Counter[str], per_shard: int) -> Iterator[ShardUnit]:
    if len(filling[split].texts) == per_shard:
        yield filling[split]
        filling[split] = ShardUnit(split, filling[split].index + 1)
    unit = filling[split]
    unit.skipped += skipped
    unit.texts.append(raw.text or "")
    unit.origins.append(raw.origin)
