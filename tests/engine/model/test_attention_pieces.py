"""Which queries are attended together: neighbours of a prompt, and decode rows whose tables begin alike."""

import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.kernels.cpu.attention import PieceForm
from vllm_obs.engine.model.attention_pieces import Pieces, attention_pieces

FORM = PieceForm(sizes=(1, 2, 4), block_size=16, keys_at_once=32, least_pieces=1)


def pieces_of(
    tables: list[list[int]], seq_lens: list[int], query_lens: list[int] | None = None, form: PieceForm = FORM
) -> Pieces:
    lengths = query_lens or [1] * len(tables)
    wide = max(map(len, tables))
    batch = AttentionBatch(
        num_decodes=lengths.count(1),
        query_lens=lengths,
        seq_lens=seq_lens,
        block_tables=torch.tensor([table + [0] * (wide - len(table)) for table in tables]),
        slot_mapping=torch.empty(0, dtype=torch.int64),
        logits_indices=torch.empty(0, dtype=torch.int64),
    )
    return attention_pieces(batch, form)


def rows_and_ends(found: Pieces) -> list[tuple[list[int], int]]:
    """The rows of each piece, and the end of the keys that they read together."""
    rows = found.queries[:, 2].tolist()
    return [(rows[first : first + count], end) for first, count, end in found.pieces.tolist()]


def test_a_prompt_is_cut_into_the_largest_pieces_and_single_queries() -> None:
    found = pieces_of([[1], [2, 3]], [8, 20], [8, 6])
    assert found.pieces.tolist() == [[0, 4, 4], [4, 4, 8], [8, 4, 18], [12, 1, 19], [13, 1, 20]]
    assert found.queries.tolist() == [[t, t, 0] for t in range(8)] + [[8 + t, 14 + t, 1] for t in range(6)]


def test_rows_with_nothing_in_common_stay_alone_and_in_order() -> None:
    found = pieces_of([[7, 1], [5], [6, 2]], [30, 9, 17])
    assert found.queries.tolist() == [[0, 29, 0], [1, 8, 1], [2, 16, 2]]
    assert found.pieces.tolist() == [[0, 1, 30], [1, 1, 9], [2, 1, 17]]


def test_rows_that_begin_alike_read_that_together_wherever_they_stand() -> None:
    tables = [[9, 8, 1], [4, 5, 6], [9, 8, 2], [9, 8, 3], [9, 8, 7]]
    found = rows_and_ends(pieces_of(tables, [33, 40, 35, 48, 41]))
    assert ([0, 2, 3, 4], 32) in found
    assert ([1], 40) in found
    assert len(found) == 2


def test_more_rows_than_a_piece_holds_make_several() -> None:
    found = rows_and_ends(pieces_of([[9, 8, row] for row in range(1, 8)], [40] * 7))
    assert sorted((len(rows), end) for rows, end in found) == [(1, 40), (2, 32), (4, 32)]
    assert sorted(row for rows, _ in found for row in rows) == list(range(7))


def test_a_block_that_a_row_has_not_filled_is_not_common() -> None:
    # Two rows cannot write one block: these tables are alike only in what is not read.
    found = rows_and_ends(pieces_of([[9, 8, 7], [9, 8, 7]], [40, 39]))
    assert found == [([0, 1], 32)]


def test_rows_of_which_too_few_pieces_would_be_left_stay_alone() -> None:
    tables, form = [[9, 8, row] for row in range(1, 9)], FORM._replace(least_pieces=2)
    assert len(pieces_of(tables[:4], [40] * 4, form=form).pieces) == 4
    assert len(pieces_of(tables, [40] * 8, form=form).pieces) == 2


def test_one_common_block_is_too_little() -> None:
    assert all(len(rows) == 1 for rows, _ in rows_and_ends(pieces_of([[9, 1], [9, 2]], [20, 20])))


def test_rows_join_those_with_which_they_have_most_in_common() -> None:
    # All begin with 2 blocks; two pairs go on together for 5 more.
    one, other = [1, 2, 10, 11, 12, 13, 14], [1, 2, 20, 21, 22, 23, 24]
    found = rows_and_ends(pieces_of([[*one, 3], [*other, 4], [*one, 5], [*other, 6]], [120] * 4))
    assert sorted(found) == [([0, 2], 96), ([1, 3], 96)]


def test_chunks_beside_decodes_keep_their_own_pieces() -> None:
    found = pieces_of([[9, 8, 1], [9, 8, 2], [9, 8, 3]], [33, 34, 37], [1, 1, 5])
    assert rows_and_ends(found) == [([0, 1], 32), ([2, 2, 2, 2], 36), ([2], 37)]
    assert found.queries[2:].tolist() == [[2 + t, 32 + t, 2] for t in range(5)]
