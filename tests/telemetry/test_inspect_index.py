"""The list of the inspector's endpoints, for people."""

from vllm_obs.telemetry.inspect_index import index_page


def test_names_in_backticks_are_shown_as_names_and_nothing_else_becomes_markup() -> None:
    document = {
        "info": {"title": "t", "version": "1", "description": "`a_at` is <late>"},
        "paths": {"/x": {"get": {"summary": "`state` & more"}}},
    }
    page = index_page(document)
    assert "<p><code>a_at</code> is &lt;late&gt;</p>" in page
    assert "<td><code>state</code> &amp; more</td>" in page
