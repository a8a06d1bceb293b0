"""The undo log keeps whole steps, and no more than it may."""

from vllm_obs.telemetry.block_undo import BlockBefore, BlockUndo


def change(step: int, block_id: int = 0) -> BlockBefore:
    return BlockBefore(step, block_id, 0, b"")


def test_changes_after_a_step_come_newest_first() -> None:
    undo = BlockUndo()
    for step in (1, 2, 2, 3):
        undo.add(change(step, block_id=len(undo)))
    assert list(undo.after(1)) == [change(3, 3), change(2, 2), change(2, 1)]
    assert list(undo.after(3)) == []


def test_old_steps_go_whole() -> None:
    undo = BlockUndo(max_steps=2)
    for step in (1, 1, 2, 3):
        undo.add(change(step))
    assert (undo.first_step, list(undo.after(0))) == (1, [change(3), change(2)])


def test_too_many_changes_take_the_oldest_step_with_them() -> None:
    undo = BlockUndo(max_changes=3)
    for step in (1, 1, 2, 3):
        undo.add(change(step))
    assert (undo.first_step, len(undo)) == (1, 2)


def test_nothing_before_a_new_beginning_is_known() -> None:
    undo = BlockUndo()
    undo.add(change(1))
    undo.begin(7)
    assert (undo.first_step, len(undo)) == (7, 0)


def test_changes_since_a_count_come_oldest_first_or_not_at_all() -> None:
    undo = BlockUndo(max_changes=3)
    for step in (1, 2, 3):
        undo.add(change(step))
    assert (undo.num_added, undo.since(1), undo.since(3)) == (3, [change(2), change(3)], [])
    undo.add(change(4))
    assert (undo.since(1), undo.since(0)) == ([change(2), change(3), change(4)], None)
    undo.begin(5)
    assert (undo.since(4), undo.since(3), undo.all()) == ([], None, [])
