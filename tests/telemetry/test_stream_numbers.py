"""Numbers stand for names: few are remembered, and none is ever given to another."""

from vllm_obs.telemetry.stream_numbers import StreamNumbers


def test_names_are_bounded_and_a_number_is_never_given_twice() -> None:
    numbers = StreamNumbers(max_names=10)
    given: dict[int, str] = {}
    for number in range(100):
        names = ["always", f"r-{number}", f"r-{number}"]
        found = numbers.of(names)
        assert found[1] == found[2]
        assert all(given.setdefault(key, name) == name for key, name in zip(found, names, strict=True))
        numbers.forget("always".__eq__)
        assert len(numbers) <= 10
    assert numbers.of(["always"]) == [1]
    assert max(given) == 101


def test_even_of_the_living_only_so_many_are_named() -> None:
    numbers = StreamNumbers(max_names=10)
    numbers.of([f"r-{number}" for number in range(11)])
    numbers.forget(lambda request_id: True)
    assert numbers.names() == {number: f"r-{number - 1}" for number in range(11, 6, -1)}
    assert numbers.names(10) == {11: "r-10", 10: "r-9"}
