"""The permutation of a cache: every id has a rank in every cluster, and what is damaged is refused by name."""

from io import BytesIO

import numpy as np
import pyarrow as pa
import pytest
from stored import vocabulary

from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache.vocabulary import Vocabulary


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("size", [1, 3, 5000, 151_936, 2**20])
def test_every_id_has_a_rank_of_its_own_in_every_cluster(size, clusters):
    table = vocabulary(size, clusters)
    head = table.heads.shape[1]
    assert (table.size, table.ranks.shape) == (size, (size, table.clusters))
    for cluster in range(table.clusters):
        ranks = table.ranks[:, cluster]
        id_of_rank = np.concatenate([table.heads[cluster], table.order])
        np.testing.assert_array_equal(id_of_rank[ranks], np.arange(size))
        assert ranks.min() >= 0 and ranks.max() < head + size
        np.testing.assert_array_equal(ranks[table.heads[cluster]], np.arange(head))


def test_by_frequency_falls_and_ties_go_to_the_smaller_id():
    table = Vocabulary.by_frequency(np.array([0, 5, 2, 5, 0, 9]))
    assert table.order.tolist() == [5, 1, 3, 2, 0, 4]
    assert table.order.dtype == np.int32 and table.clusters == 1
    assert table.ranks[:, 0].tolist() == [4, 1, 3, 2, 5, 0]


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("size", [1, 300, 151_936])
def test_equal_permutations_are_equal_bytes(size, clusters):
    table = vocabulary(size, clusters)
    data = table.to_bytes()
    assert data == Vocabulary(table.order.copy(), np.asfortranarray(table.heads)).to_bytes()
    back = Vocabulary.from_bytes(data, "here")
    np.testing.assert_array_equal(back.order, table.order)
    np.testing.assert_array_equal(back.heads, table.heads)
    assert back.to_bytes() == data
    assert data != Vocabulary(np.roll(table.order, 1), table.heads).to_bytes() or size == 1


@pytest.mark.parametrize("clusters", [False, True])
def test_damaged_bytes_are_refused_or_are_a_permutation(clusters):
    """Which of them is for the file's hash to say; nothing else is raised, and nothing that is accepted can lose an id."""
    data, refused = vocabulary(300, clusters).to_bytes(), 0
    damaged = [data[:stop] for stop in range(0, len(data), 97)]
    damaged += [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(0, len(data), 3)]
    for changed in damaged:
        try:
            table = Vocabulary.from_bytes(changed, "here/vocabulary.arrow")
        except CacheError as error:
            assert str(error).startswith("here/vocabulary.arrow: cannot be read (")
            refused += 1
        else:
            assert sorted(table.order.tolist()) == list(range(300))
            assert not table.heads.size or table.heads.max() < 300
    assert refused > len(damaged) / 2


IDS = pa.large_list(pa.int32())
GOOD = {"order": pa.array([[1, 0, 2]], IDS), "heads": pa.array([[2, 1, 0, 2]], IDS), "clusters": pa.array([2])}


def file_of(**changes) -> bytes:
    columns = {name: column for name, column in (GOOD | changes).items() if column is not None}
    sink, table = BytesIO(), pa.table(columns)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_a_good_one_by_hand():
    table = Vocabulary.from_bytes(file_of(), "here")
    assert (table.order.tolist(), table.heads.tolist()) == ([1, 0, 2], [[2, 1], [0, 2]])


@pytest.mark.parametrize(
    "changes",
    [
        {"order": pa.array([[1, 0, 1]], IDS)},
        {"order": pa.array([[1, 0, 3]], IDS)},
        {"order": pa.array([[1, 0, -1]], IDS)},
        {"order": pa.array([[1, 0, None]], IDS)},
        {"order": pa.array([None], IDS)},
        {"order": pa.array([[1, 0, 2]], pa.large_list(pa.int64()))},
        {"order": pa.array([[1.0, 0.0, 2.0]], pa.large_list(pa.float64()))},
        {"order": pa.array([1])},
        {"order": None},
        {"heads": None},
        {"clusters": None},
        {"heads": pa.array([[2, 1, 0, 3]], IDS)},
        {"heads": pa.array([[2, 1, 0, -1]], IDS)},
        {"heads": pa.array([[2, 2, 0, 1]], IDS)},
        {"clusters": pa.array([3])},
        {"clusters": pa.array([0])},
        {"clusters": pa.array([None], pa.int64())},
        {"clusters": pa.array(["2"])},
        {name: column[:0] for name, column in GOOD.items()},
    ],
)
def test_what_is_no_vocabulary_is_refused(changes):
    with pytest.raises(CacheError, match=r"^here: cannot be read"):
        Vocabulary.from_bytes(file_of(**changes), "here")


@pytest.mark.parametrize("data", [b"", b"ARROW1", b"\0" * 4096, b"{}"])
def test_what_is_no_arrow_file_is_refused(data):
    with pytest.raises(CacheError, match=r"^here: cannot be read"):
        Vocabulary.from_bytes(data, "here")
