from vllm_obs.telemetry.sequence_groups import MAX_GROUPS, SequenceGroups


def test_a_sequence_alone_is_its_own_longest() -> None:
    groups = SequenceGroups()
    assert groups.end("p-0", 1, 7) == [7]
    assert len(groups) == 0


def test_the_longest_counts_for_all_when_the_last_has_ended() -> None:
    groups = SequenceGroups()
    ends = [groups.end(name, 2, tokens) for name, tokens in (("p-0", 3), ("q-1", 9), ("p-1", 5), ("q-0", 1))]
    assert ends == [[], [], [5, 5], [9, 9]]
    assert len(groups) == 0


def test_too_many_open_prompts_give_up_the_oldest() -> None:
    groups = SequenceGroups()
    ends = [groups.end(f"p{number}-0", 3, number) for number in range(MAX_GROUPS + 2)]
    assert ends[-2:] == [[0], [1]]
    assert len(groups) == MAX_GROUPS


def test_open_prompts_outlive_a_restart() -> None:
    groups, resumed = SequenceGroups(), SequenceGroups()
    groups.end("p-0", 2, 3)
    resumed.restore(groups.state())
    assert resumed.end("p-1", 2, 1) == [3, 3]
