"""Deal the stream of raw documents to splits and shards: a function of the documents alone, never of workers or batches."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from pipeline.contract.logit_cache.index import Split
from pipeline.contract.manifest.shard import Documents
from stage1_teacher.documents.base import RawDocument


@dataclass
class ShardUnit:
    """The documents of one shard, as text: the unit of work, of resume and of loss.

    Attributes:
        skipped: by reason, the documents skipped since the kept one before each of its own. So a full shard is the same
            whatever follows it in the stream.
    """

    split: Split
    index: int
    texts: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass
class ShardPlan:
    """The shards of the `wanted` splits in order, each yielded when the next one begins, the last ones at the end.

    Reading stops at `documents.limit` training documents.

    Attributes:
        trailing: once iterated, the documents skipped after the last kept one, by reason; empty unless the source ended
            before the limit. They belong to no shard: a longer source would count them with a document yet to come.
    """

    source: Iterable[RawDocument]
    documents: Documents
    per_shard: int
    wanted: Collection[Split]
    trailing: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[ShardUnit]:
        filling: dict[Split, ShardUnit] = {split: ShardUnit(split, 0) for split in self.wanted}
        self.trailing = Counter()
        kept = train = 0
        for raw in self.source:
            if raw.text is None:
                self.trailing[raw.skip or "unknown"] += 1
                continue
            split = split_of(kept, self.documents)
            kept, train = kept + 1, train + (split == "train")
            if split in filling:
                yield from _add(filling, split, raw, self.trailing, self.per_shard)
            self.trailing = Counter()
            if train == self.documents.limit:
                break
        yield from (unit for unit in filling.values() if unit.texts)


def split_of(kept: int, documents: Documents) -> Split:
    """The split of the `kept`-th document that is not skipped."""
    turn, rest = divmod(kept, documents.validation.every)
    return "validation" if rest == 0 and turn < documents.validation.documents else "train"


def _add(filling: dict[Split, ShardUnit], split: Split, raw: RawDocument, skipped: Counter[str], per_shard: int) -> Iterator[ShardUnit]:
    if len(filling[split].texts) == per_shard:
        yield filling[split]
        filling[split] = ShardUnit(split, filling[split].index + 1)
    unit = filling[split]
    unit.skipped += skipped
    unit.texts.append(raw.text or "")
    unit.origins.append(raw.origin)
