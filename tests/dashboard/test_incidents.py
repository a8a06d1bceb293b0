"""The incidents page lists what went wrong, and reads one incident whole."""

from typing import Any

from inspector_pages import shown, texts
from observer_states import KeptSource, answers_of

from vllm_obs.dashboard.source import Reading
from vllm_obs.dashboard.url_state import link

NAME = next(name for name in answers_of("incident") if name.startswith("/inspect/incidents/"))


def test_newest_incident_is_read_without_a_click() -> None:
    answers = answers_of("incident")
    content = answers[NAME]
    page = shown("incidents", KeptSource(answers))
    read = texts(page).replace("\\", "")
    assert content["incident"]["says"] in read
    assert content["incident"]["verdict"]["says"] in read
    assert f"--incident {content['folder']}" in read


class HappensMeanwhile(KeptSource):
    """A source that lists no incident when it is asked at first."""

    num_asked = 0

    def get(self, path: str, **query: Any) -> Reading:
        self.num_asked += path == "/inspect/incidents"
        return Reading({"incidents": []}, 0.0) if self.num_asked == 1 else super().get(path, **query)


def test_first_incident_is_read_as_soon_as_it_is_listed() -> None:
    answers = answers_of("incident")
    page = shown("incidents", HappensMeanwhile(answers))
    assert answers[NAME]["incident"]["verdict"]["says"] in texts(page).replace("\\", "")


def test_list_links_to_each() -> None:
    answers = answers_of("incident")
    rows = answers["/inspect/incidents"]["incidents"]
    table = shown("incidents", KeptSource(answers)).dataframe[0].value
    assert list(table["read"]) == [link("incidents", incident=row["incident"]) for row in reversed(rows)]
    assert list(table["says"]) == [row["says"] for row in reversed(rows)]


def test_processes_say_who_was_at_fault_and_requests_where_they_were() -> None:
    answers = answers_of("incident")
    content = answers[NAME]
    tables = [element.value for element in shown("incidents", KeptSource(answers)).dataframe]
    processes = next(table for table in tables if "At fault" in table)
    at_fault = processes[processes["At fault"] == "at fault"]
    assert list(at_fault["Role"]) == [content["incident"]["culprit"]["role"]]
    requests = next(table for table in tables if "Waits for" in table)
    assert list(requests["Request"]) == [row["request_id"] for row in content["open_requests"]]


def test_without_incidents_it_says_what_would_be_here() -> None:
    assert "No incident in this run" in texts(shown("incidents", KeptSource(answers_of("idle"))))


def test_unknown_incident_is_said_to_be_unknown() -> None:
    answers = answers_of("incident")
    answers["/inspect/incidents/nothing"] = {
        "error": {"message": "no incident 'nothing' is kept here", "code": 404}
    }
    read = texts(shown("incidents", KeptSource(answers), incident="nothing")).replace("\\", "")
    assert "no incident 'nothing' is kept here" in read
