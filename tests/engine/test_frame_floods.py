"""A real engine process under floods of broken frames and of requests: it counts, refuses, and serves."""

import contextlib
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from bad_frames import ADD, BAD_FRAMES, GOOD, changed, changed_sampling
from engine_peer import GENERATION, EnginePeer
from fake_executor import make_request
from process_watch import cpu_seconds
from run_rings import records_of

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.config import ObservabilityConfig
from vllm_obs.engine.core_admission import MAX_LIVE_REQUESTS
from vllm_obs.engine.engine_titles import ENGINE_MODULE
from vllm_obs.engine.messages import FinishReason, UtilityCall
from vllm_obs.telemetry.records import FrameDropped

ROUNDS = 40
GROWTH_BYTES = 8 << 20
"""Of an engine's memory over a flood, once the first round has warmed it up."""
NUM_ADDS = 100_000
NUM_DEAF = 64
NUM_TOKENS = 1800
NO_TIME = dict.fromkeys(
    ("base_seconds", "seconds_per_token", "seconds_per_row", "seconds_per_context_token"), 0.0
) | {"num_layers": 1}
IDS_A_MESSAGE = 30_000

HOSTILE: dict[str, tuple[str, list[bytes]]] = {
    **{name: entry for name, entry in BAD_FRAMES.items() if entry[1]},
    "100 frames": ("parts", [*GOOD, *[b""] * 98]),
    "a million int keys": ("decode", [ADD, b"\x92\x01\xdf\x00\x0f\x42\x40" + b"\x05\x06" * 1_000_000]),
}

WRONG_IDS: dict[str, list[bytes]] = {
    "a stop id of 2^64 - 1": changed_sampling(11, [2**64 - 1]),
    "a stop id of -1": changed_sampling(11, b"i\xff\xff\xff\xff"),
    "a stop id of true": changed_sampling(11, [True]),
    "a stop id of NaN": changed_sampling(11, [float("nan")]),
    "a stop id of 0.5": changed_sampling(11, [0.5]),
    "a prompt id of -1": changed(3, [b"\xff\xff\xff\xff", "i4", [1]]),
    "a prompt id of 2^31 - 1": changed(3, [b"\xff\xff\xff\x7f", "i4", [1]]),
    "prompt ids as a list": changed(3, [2**64 - 1, True, 0.5]),
    "a bias on 2^64 - 1": changed_sampling(13, [[2**64 - 1, 1.0]]),
    "a bias on true": changed_sampling(13, [[True, 1.0]]),
    "a bias of NaN": changed_sampling(13, [[3, float("nan")]]),
    "an allowed id of -1": changed_sampling(14, b"i\xff\xff\xff\xff"),
    "bad words of 2^63": changed_sampling(15, [b"i\x01\x00\x00\x00", b"q" + b"\xff" * 8]),
}


@contextlib.contextmanager
def synthetic_engine() -> Iterator[EnginePeer]:
    """One whose steps take no time, and that records into a ring."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="vo-") as base:
        patch.setenv("VLLM_OBS_RUN_DIR", base)
        args = EngineArgs(load_format="synthetic", max_num_seqs=8, model_loader_extra_config=NO_TIME)
        config = replace(args.create_engine_config(), observability=ObservabilityConfig(recorder="ring"))
        made = EnginePeer(config=config, module=ENGINE_MODULE)
        yield made
        made.close()


@pytest.fixture(scope="module")
def peer() -> Iterator[EnginePeer]:
    """An engine that is asked for no more than its ring holds."""
    with synthetic_engine() as made:
        yield made


@pytest.fixture
def busy_peer() -> Iterator[EnginePeer]:
    """An engine of its own for who asks for more."""
    with synthetic_engine() as made:
        yield made


def resident_bytes(peer: EnginePeer) -> int:
    return int(psutil.Process(peer.facts.pid).memory_info().rss)


def dropped(peer: EnginePeer) -> Counter[str]:
    """What the engine has recorded as dropped so far, by reason."""
    records = records_of(Path(peer.link.config.run_dir), "EngineCore_DP0")
    return Counter(record.reason for record in records if isinstance(record, FrameDropped))


@pytest.mark.parametrize("name", WRONG_IDS)
def test_a_token_that_cannot_be_is_an_error_to_its_owner(peer: EnginePeer, name: str) -> None:
    peer.send_frames(WRONG_IDS[name])
    outputs = peer.outputs()
    assert (outputs.request_ids, outputs.finish_reasons) == (["r-1"], [FinishReason.ERROR])
    assert outputs.errors[0][:2] == (0, "invalid_value")


def test_a_flood_of_broken_frames_is_counted_by_reason_and_takes_no_memory(peer: EnginePeer) -> None:
    send_all(peer)
    peer.ping()
    before, size = dropped(peer), resident_bytes(peer)
    for _ in range(ROUNDS):
        send_all(peer)
        peer.ping()  # what waits to be read is memory, too
    sent = Counter(itertools.chain.from_iterable([reason] * ROUNDS for reason, _ in HOSTILE.values()))
    assert dropped(peer) - before == sent
    assert resident_bytes(peer) - size < GROWTH_BYTES
    assert peer.link.child.exit_cause is None


def test_a_flood_of_broken_frames_changes_no_token_of_others(peer: EnginePeer) -> None:
    alone = run_one(peer, "alone")
    peer.add("beside", [5, 6, 7], max_tokens=NUM_TOKENS)
    for _ in range(ROUNDS):
        send_all(peer)
    assert peer.run({"beside"}, ignoring=frozenset({"r-1"}))["beside"] == alone
    peer.ping()


def run_one(peer: EnginePeer, request_id: str) -> tuple[list[int], FinishReason]:
    peer.add(request_id, [5, 6, 7], max_tokens=NUM_TOKENS)
    return peer.run({request_id})[request_id]


def send_all(peer: EnginePeer) -> None:
    for _, frames in HOSTILE.values():
        peer.send_frames(frames)


def test_a_replayed_message_and_one_out_of_order_change_nothing_for_others(peer: EnginePeer) -> None:
    before = dropped(peer)
    add = peer.encoder.request(make_request("again", [5, 6, 7], 20, generation=GENERATION))
    peer.abort("again")  # before it is there
    peer.add("other", [5, 6, 7], max_tokens=200)
    for _ in range(5):
        peer.send_frames(add)
    found = peer.run({"again", "other"})
    assert len(found["again"][0]) == 20
    assert (len(found["other"][0]), found["other"][1]) == (200, FinishReason.LENGTH)
    peer.abort("again")
    peer.abort("again", "nobody")
    peer.ping()
    assert dropped(peer) - before == {"unknown": 3, "duplicate": 4}


def test_a_flood_of_requests_stops_at_the_quota_and_the_others_are_served(busy_peer: EnginePeer) -> None:
    """Frozen, so that none of them ends meanwhile."""
    peer = busy_peer
    call(peer, "pause_scheduler", "keep")
    peer.add("before", [5, 6, 7], max_tokens=50)
    size = resident_bytes(peer)
    frames = peer.encoder.request(make_request("flood-00000", [1, 2, 3], 1, generation=GENERATION))
    payload = bytes(frames[1])
    for number in range(NUM_ADDS):
        peer.send_frames([frames[0], payload.replace(b"flood-00000", b"flood-%05d" % number)])
    refused = 0
    while refused < NUM_ADDS - MAX_LIVE_REQUESTS + 1:
        outputs = peer.outputs()
        refused += sum(reason == "under_pressure" for _, reason, _ in outputs.errors)
    assert refused == NUM_ADDS - MAX_LIVE_REQUESTS + 1
    growth = resident_bytes(peer) - size
    assert growth < 4 * 1024 * MAX_LIVE_REQUESTS, growth
    for begin in range(0, NUM_ADDS, IDS_A_MESSAGE):
        peer.abort(*(f"flood-{number:05d}" for number in range(begin, min(begin + IDS_A_MESSAGE, NUM_ADDS))))
    call(peer, "resume_scheduler")
    peer.add("after", [5, 6, 7], max_tokens=50)
    found: dict[str, int] = {}
    while set(found) != {"before", "after"}:
        outputs = peer.outputs()
        rows = zip(outputs.request_ids, outputs.finish_reasons, strict=True)
        found |= {name: reason for name, reason in rows if not name.startswith("flood") and reason >= 0}
    assert set(found.values()) == {FinishReason.LENGTH}


def test_a_client_that_never_reads_is_cut_off_and_told_once_it_does(busy_peer: EnginePeer) -> None:
    """The engine makes more steps than its sockets and its outbox hold; it is idle once it has cut it off."""
    peer = busy_peer
    for number in range(NUM_DEAF):
        peer.add(f"deaf-{number}", [5, 6, 7], max_tokens=NUM_TOKENS)
    await_idle(peer)
    endings: dict[str, int] = {}
    reasons: set[str] = set()
    while len(endings) < NUM_DEAF:
        outputs = peer.outputs()
        reasons.update(reason for _, reason, _ in outputs.errors)
        for name, ending in zip(outputs.request_ids, outputs.finish_reasons, strict=True):
            if ending >= 0:
                endings.setdefault(name, ending)
    assert {FinishReason.ERROR} <= set(endings.values()) <= {FinishReason.LENGTH, FinishReason.ERROR}
    assert reasons == {"stalled"}
    peer.ping()
    assert len(run_one(peer, "heard")[0]) == NUM_TOKENS


def await_idle(peer: EnginePeer) -> None:
    """Until the engine's process has used no time to speak of for a while."""
    deadline = time.monotonic() + 60
    used = -1.0
    while (now := cpu_seconds(peer.facts.pid)) - used > 0.05:
        assert time.monotonic() < deadline
        used = now
        time.sleep(1.0)


def call(peer: EnginePeer, method: str, *arguments: str) -> None:
    peer.send(UtilityCall(0, GENERATION, 10**6, method, list(arguments)))
    while (outputs := peer.outputs()).utility is None:
        continue
    assert outputs.utility is not None
    assert outputs.utility.error == ""
