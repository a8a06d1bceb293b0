"""Hostile bodies as documents: what is no JSON, no object, of another type, too deep, or names no model."""

from collections.abc import Iterator

from hostile_exchange import Case
from hostile_routes import (
    BATCH,
    CHAT,
    DETOKENIZE,
    DISTINCT,
    EMBEDDINGS,
    PROMPTS,
    RERANK,
    SCORE,
    TEXT,
    VALID,
    merged,
    raw,
    refused,
    served,
    written,
)

MEDIA_TYPES = (
    "",
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "x",
    "json",
)
ENCODINGS = ("gzip", "deflate", "br", "gzip, identity", "x" * 2000)
DEEP = b'{"x":%b1%b}'


def document_cases() -> Iterator[Case]:
    """H1 to H4, H14 and H16."""
    for path in DISTINCT:
        yield from _no_object(path)
        yield from _other_types(path)
        yield from _models(path)
        yield from _bytes(path)
        yield from _deep(path)
    for path in VALID.keys() - DISTINCT:
        yield raw("H1", path, b"", "invalid_json")
        yield Case("H2", path, b"{}", 415, ("unsupported_media_type",), headers={"content-type": "text/plain"})
        yield Case("H4", path, merged(path, {"model": "nope"}), 404, ("model_not_found",), "model")
        yield raw("H16", path, b"[" * 100_000, "too_deep")
    yield from _empty_prompts()
    yield from (served("H14", path, {PROMPTS[path]: "a\0b"}) for path in (TEXT, EMBEDDINGS))
    yield served("H14", CHAT, {"messages": [{"role": "user", "content": "\0"}]})
    yield served("H16", TEXT, {"unknown": [[[[1]]]]})


def _no_object(path: str) -> Iterator[Case]:
    for body in (
        b"",
        b" \r\n\t",
        b'{"prompt":',
        b"{",
        b'{"a":1}{',
        b"{'a':1}",
        b'{"a":1,}',
        b"\x00",
        b"{}\x00",
        b"nul",
    ):
        yield raw("H1", path, body, "invalid_json")
    for body in (b"[1,2]", b"null", b"7", b'"x"', b"true", b"[]"):
        yield raw("H1", path, body, "invalid_body")


def _other_types(path: str) -> Iterator[Case]:
    body = written(VALID[path])
    told = ("unsupported_media_type",)
    for kind in MEDIA_TYPES:
        yield Case("H2", path, body, 415, told, headers={"content-type": kind})
    yield Case("H2", path, body, 415, told, headers={"content-type": "application/json; charset=utf-16"})
    for encoding in ENCODINGS[: None if path == TEXT else 1]:
        yield Case("H2", path, body, 415, told, headers={"content-encoding": encoding})


def _models(path: str) -> Iterator[Case]:
    for model in ("nope", "x" * 1024, "a/../b", "\u202egnp.exe", "<script>", "' OR 1=1", "\0"):
        yield Case("H4", path, merged(path, {"model": model}), 404, ("model_not_found",), "model")
    for bad in ("", 5, True, ["a"], {"a": 1}):
        yield refused("H4", path, {"model": bad})
    yield refused("H4", path, {"model": "m" * 1_000_000}, says="^(?!.*mmmm).*1024")


def _bytes(path: str) -> Iterator[Case]:
    body = written(VALID[path])
    for hostile in (
        body.replace(b"H", b"\xff", 1) if b"H" in body else b'{"tokens":[1],"x":"\xff"}',
        body.decode().encode("utf-16"),
        body.decode().encode("utf-32"),
        b"\xef\xbb\xbf" + body,
        body[:-1] + b',"x":"\\ud800"}',
        body[:-1] + b',"\\udfff":1}',
        body[:-1] + b',"x":"\xed\xa0\x80"}',
        body[:-1] + b',"x":"\x01"}',
        body[:-1] + b',"x":NaN}',
        body[:-1] + b',"x":-Infinity}',
        body[:-1] + b',"x":1e999}',
    ):
        yield raw("H14", path, hostile, "invalid_json")


def _deep(path: str) -> Iterator[Case]:
    for opening, closing, depth in ((b"[", b"]", 100_000), (b'{"a":', b"}", 900), (b"[", b"]", 64)):
        yield raw("H16", path, DEEP % (opening * depth, closing * depth), "too_deep")
    yield raw("H16", path, b"[" * 100_000, "too_deep")
    yield raw("H16", path, DEEP % (b'{"a":[' * 500, b"]}" * 500), "too_deep")


def _empty_prompts() -> Iterator[Case]:
    for path, field in PROMPTS.items():
        yield refused("H3", path, {field: ""}, "empty_prompt", *(["invalid_value"] if "messages" in field else ()))
        if path not in (SCORE, RERANK):
            yield refused("H3", path, {field: None}, "empty_prompt")
        if path != RERANK:
            yield refused("H3", path, {field: []}, "empty_prompt")
    for path in (TEXT, EMBEDDINGS):
        for prompts in ([[]], [""], ["a", ""], [[1], []]):
            yield refused("H3", path, {PROMPTS[path]: prompts}, "empty_prompt")
    yield refused("H3", BATCH, {"messages": [[]]}, "empty_prompt", any_param=True)
    for documents in ([], [""], ["a", {"text": ""}]):
        yield refused("H3", RERANK, {"documents": documents}, "empty_prompt")
    for missing in ("text_1", "text_2"):
        yield refused("H3", SCORE, {missing: None})
    yield refused("H3", DETOKENIZE, {"tokens": None})
