"""Hostile requests beside their bodies' fields: paths, keys, orders, and bodies that are large."""

from hostile_routes import CHAT, RESPONSES, TEXT, merged

OWN_PATHS = (
    *(
        "//v1/models",
        "/%2fv1/models",
        "/%2Fv1%2Fmodels",
        "/v1/models/",
        "/V1/models",
        "/v1/models;x",
        "/v1/../metrics",
    ),
    *("/v1//models", "/v1/./models", "/v1/models%00", "/v1/models%0d%0aset-cookie:a", "/./metrics", "/metrics/"),
    *(
        "/metrics;x",
        "/metrics%2f",
        "/%6detrics/..",
        "/health/..",
        "/v1/models/..%2f..%2fmetrics",
        "/.env",
        "/\\evil",
    ),
    *("/v1/models/%ff%fe", "/" + "a" * 8000, "/v1/responses/" + "x" * 5000),
)
ADMIN = (
    *("pause", "resume", "is_paused", "sleep", "wake_up", "is_sleeping", "reset_prefix_cache", "reset_mm_cache"),
    *(
        "start_profile",
        "stop_profile",
        "collective_rpc",
        "server_info",
        "abort_requests",
        "update_weights",
        "load",
    ),
    *(
        "scale_elastic_ep",
        "is_scaling_elastic_ep",
        "v1/load_lora_adapter",
        "v1/unload_lora_adapter",
        "debug",
        "admin",
    ),
    *("inspect/state", "inspect/requests", "inspect/profile", "inspect/stacks"),
)
BAD_KEYS = (
    *(
        b"",
        b"Bearer wrong",
        b"Bearer s3cret-on",
        b"Bearer s3cret-onee",
        b"bearer s3cret-one",
        b"Bearer \xff",
        b"\xff",
    ),
    *(b"Bearer  s3cret-one", b"Basic s3cret-one", b"s3cret-one", b"Bearer", b"Bearer s3cret-one,s3cret-two"),
    b"Bearer " + b"x" * 60_000,
)


def large_bodies() -> list[tuple[str, bytes]]:
    """Paths and bodies that take long to look at: texts of one token, without merges, of emoji; many values."""
    longest = 165_000  # characters that a prompt of 2048 tokens may have at most
    texts = ("a" * longest, "\U0001f468\u200d" * (longest // 2), "qz" * (longest // 2), "a" * 10**6, "é" * 10**6)
    bodies: list[tuple[str, bytes]] = [(TEXT, merged(TEXT, {"prompt": text})) for text in texts]
    bodies += [(CHAT, merged(CHAT, {"messages": [{"role": "user", "content": text}]})) for text in texts]
    bodies += [("/tokenize", merged("/tokenize", {"prompt": text})) for text in texts]
    bodies += [
        (TEXT, b'{"prompt":"Hi","x":[' + b"[]," * 8_000_000 + b"1]}"),
        (TEXT, b'{"prompt":"Hi","x":[' + b"1," * 1_900_000 + b"NaN]}"),
        (TEXT, b'{"prompt":"Hi","x":"' + b"a" * 30_000_000 + b'","n":NaN}'),
        (TEXT, merged(TEXT, {"guided_choice": [5] * 1_000_000})),
        (CHAT, merged(CHAT, {"messages": [{"role": 1, "content": 2}] * 16_000, "stop_token_ids": ["x"] * 4000})),
        (
            CHAT,
            merged(
                CHAT,
                {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": [[]] * 10**6}}}]},
            ),
        ),
        ("/detokenize", merged("/detokenize", {"tokens": [504] * 999_999})),
        (RESPONSES, merged(RESPONSES, {"input": [{"role": "user", "content": "x" * 1000}] * 4096})),
    ]
    return bodies
