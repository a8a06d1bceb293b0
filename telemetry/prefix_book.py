"""PrefixBook: which sequence made the blocks that others find in the prefix cache, and which of them are gone."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm_obs.telemetry.block_map import BlockMap
from vllm_obs.telemetry.records import BlocksCached, BlocksChanged

MAX_ORIGINS = 1 << 16
MAX_STORIES = 4096
UNKNOWN = ""


class Origin(NamedTuple):
    """A block entered the prefix cache in `step`, filled by this sequence (empty: not known).

    `evicted_step` is when it left again, 0 while it can be found.
    """

    request_id: str
    step: int
    evicted_step: int = 0


@dataclass(slots=True)
class PrefixStory:
    """What one admission of a sequence found in the prefix cache, block by block from the start.

    `origins` are those of the hits. `miss_block_id` is the first block that was not found and had to be computed,
    None where no other was asked for yet; `miss_hash` is its content's once it is computed, `earlier` who had that
    content in the cache before and lost it.
    """

    step: int
    origins: list[Origin] = field(default_factory=list)
    miss_block_id: int | None = None
    miss_hash: bytes = b""
    earlier: Origin | None = None

    @property
    def num_hits(self) -> int:
        """Blocks found."""
        return len(self.origins)


class PrefixBook:
    """One engine's: the origins of the last 65,536 contents that were cached, and the last 4,096 admissions.

    What it does not know it does not guess: after a loss it begins anew, and `first_step` says since when it knows
    every block that entered the cache.
    """

    def __init__(self) -> None:
        self.first_step = 0
        self._origins: OrderedDict[bytes, Origin] = OrderedDict()
        self._stories: OrderedDict[str, PrefixStory] = OrderedDict()
        self._makers: dict[int, str] = {}
        """Block → who got it with nothing in it. As many as the pool has blocks."""
        self._awaited: dict[int, PrefixStory] = {}
        """Block → the admission whose first miss it is, until it is filled or handed on."""

    def __len__(self) -> int:
        return len(self._origins)

    def story(self, request_id: str) -> PrefixStory | None:
        """The last admission of a sequence, None if that is not known."""
        return self._stories.get(request_id)

    def origin(self, block_hash: bytes) -> Origin | None:
        """Who made this content, None if that is not known."""
        return self._origins.get(block_hash)

    def changed(self, record: BlocksChanged, blocks: BlockMap) -> None:
        """Blocks were handed out; `blocks` knows of it already."""
        rows = zip(record.request_ids, record.allocated, record.num_hit_blocks, strict=False)
        for request_id, allocated, num_hits in rows:
            if not allocated:
                continue
            fresh = allocated[num_hits:]
            for block_id in fresh:
                self._makers[block_id] = request_id
                self._awaited.pop(block_id, None)
            if num_hits or len(blocks.held_by(request_id)) == len(allocated):
                self._begin(request_id, record.step, blocks.look(allocated[:num_hits])[1], fresh)

    def cached(self, record: BlocksCached) -> None:
        """Blocks entered or left the prefix cache."""
        for block_id, block_hash in zip(record.block_ids, record.hashes, strict=False):
            known = self._origins.get(block_hash)
            if record.evicted:
                if known is not None:
                    self._origins[block_hash] = known._replace(evicted_step=record.step)
                continue
            story = self._awaited.pop(block_id, None)
            if story is not None:
                story.miss_hash, story.earlier = block_hash, known
            self._put(block_hash, Origin(self._makers.get(block_id, UNKNOWN), record.step))

    def begin(self, step: int) -> None:
        """Records are missing: what was in the cache before this step is not known any more."""
        self.first_step = step
        self._origins.clear()
        self._makers.clear()
        self._awaited.clear()

    def _begin(self, request_id: str, step: int, hashes: Sequence[bytes], fresh: list[int]) -> None:
        nobody = Origin(UNKNOWN, 0)
        story = PrefixStory(step, [self._origins.get(each, nobody) for each in hashes])
        if fresh:
            story.miss_block_id = fresh[0]
            self._awaited[fresh[0]] = story
        self._stories[request_id] = story
        self._stories.move_to_end(request_id)
        if len(self._stories) > MAX_STORIES:
            self._stories.popitem(last=False)

    def _put(self, block_hash: bytes, origin: Origin) -> None:
        self._origins[block_hash] = origin
        self._origins.move_to_end(block_hash)
        if len(self._origins) > MAX_ORIGINS:
            _, oldest = self._origins.popitem(last=False)
            self.first_step = max(self.first_step, oldest.step + 1)
