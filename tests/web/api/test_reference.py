"""`/docs`: the API's reference, made from its OpenAPI document, with nothing from elsewhere."""

from typing import Any

import pytest

from pgbeat.web.pages.reference import prose
from pgbeat.web.reference import Reference
from tests.support.pages import Page, html
from tests.support.web import Web

DOCUMENT: dict[str, Any] = {
    "info": {"title": "t", "version": "1"},
    "tags": [{"name": "lanes", "description": "Limits."}],
    "paths": {
        "/lanes/{name}": {
            "put": {
                "tags": ["lanes"],
                "operationId": "put_lane",
                "summary": "Make a lane",
                "description": "Makes it.",
                "security": [{"bearer": []}],
                "parameters": [
                    {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}},
                    {
                        "name": "limit",
                        "in": "query",
                        "schema": {"type": "integer", "minimum": 1, "maximum": 9, "default": 5},
                    },
                ],
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Lane"}}
                    },
                },
                "responses": {
                    "404": {"description": "No."},
                    "200": {
                        "description": "Successful Response",
                        "content": {
                            "application/json": {
                                "schema": {
                                    "type": "array",
                                    "items": {"$ref": "#/components/schemas/Lane"},
                                }
                            }
                        },
                    },
                },
            }
        }
    },
    "components": {
        "schemas": {
            "Lane": {
                "type": "object",
                "required": ["mode", "tags"],
                "properties": {
                    "mode": {"enum": ["a", "b'"], "description": "How."},
                    "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}},
                    "more": {"anyOf": [{"type": "object"}, {"type": "null"}], "examples": [{}]},
                },
            }
        }
    },
}


def test_a_document_as_people_read_it() -> None:
    found = Reference(DOCUMENT)
    [section] = found.sections
    assert (section.name, section.note) == ("lanes", "Limits.")
    [operation] = section.operations
    assert (operation.method, operation.path, operation.whose) == ("PUT", "/lanes/{name}", "users")
    assert operation.body == [("Lane", "Lane")]
    assert operation.command == (
        'curl -X PUT "$PGBEAT/lanes/{name}" \\\n'
        '  -H "Authorization: Bearer $TOKEN" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        """  -d '{"mode": "a", "tags": ["…"]}'"""
    )
    name, limit = operation.parameters
    assert (name.place, name.is_required, limit.is_required) == ("path", True, False)
    assert (limit.kind, limit.default) == ([("integer, 1 to 9", None)], "5")
    [answer] = operation.answers
    assert (answer.status, answer.note) == ("200", "")
    assert answer.kind == [("list of ", None), ("Lane", "Lane")]
    assert [each.status for each in operation.problems] == ["404"]
    [model] = found.models
    mode, tags, more = model.fields
    assert (mode.kind, mode.is_required, mode.note) == ([("a | b'", None)], True, "How.")
    assert tags.kind == [("list of ", None), ("string, up to 4 characters", None)]
    assert more.kind == [("object", None), (" or ", None), ("null", None)]
    assert more.example == "{}"


def test_who_may_ask_is_said(web: Web) -> None:
    found = Reference(web.app.openapi())
    whose = {
        f"{each.method} {each.path}": each.whose
        for section in found.sections
        for each in section.operations
    }
    assert whose["GET /healthz"] == "anybody"
    assert whose["GET /jobs"] == "users"
    assert whose["POST /lanes/{name}/pause"] == "administrators"


def test_a_command_survives_the_shell() -> None:
    document = {**DOCUMENT, "components": {"schemas": {"Lane": {"examples": [{"a": "it's"}]}}}}
    [section] = Reference(document).sections
    assert section.operations[0].command.endswith("""-d '{"a": "it'\\''s"}'""")


@pytest.mark.parametrize(
    ("search", "found"),
    [("", 1), ("MAKES lane", 1), ("put limit", 1), ("lanes", 1), ("nothing", 0), ("make x", 0)],
)
def test_what_has_all_the_words_is_found(search: str, found: int) -> None:
    sections = Reference(DOCUMENT).find(search)
    assert sum(len(section.operations) for section in sections) == found


def test_prose_is_escaped() -> None:
    assert prose("a <b> `c<d` **e**\n\n*f* 2*3*4") == (
        "<p>a &lt;b&gt; <code>c&lt;d</code> <strong>e</strong></p><p><em>f</em> 2*3*4</p>"
    )


def page(web: Web, **query: str) -> Page:
    return html(web.nobody.get("/docs", params=query))


def test_the_page_has_every_operation_and_every_model(web: Web) -> None:
    text = page(web)
    document = web.app.openapi()
    ids = text.tree.xpath("//@id")
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert path in text
            assert operation["operationId"] in ids
    for model in document["components"]["schemas"]:
        assert f"model-{model}" in ids
    # Each link within the page leads somewhere, and no id is there twice.
    assert len(ids) == len(set(ids))
    assert {each.get("href")[1:] for each in text.all("[href^='#']")} <= set(ids)


def test_nothing_is_loaded_from_elsewhere(web: Web) -> None:
    loaded = page(web).tree.xpath("//link/@href | //@src")
    assert loaded and all(each.startswith("/static/") for each in loaded)
    for each in loaded:
        assert web.nobody.get(each).status_code == 200
    assert web.nobody.get("/redoc").status_code == 404


def test_what_is_looked_for_is_shown(web: Web) -> None:
    text = page(web, search="pause lane")
    assert "/lanes/{name}/pause" in text
    assert "/admin/scheduled-jobs/{name}/pause" not in text
    assert '<details class="operation" open>' in text
    assert 'href="/docs#model-LaneDone"' in text
    assert "No operation has these words" in page(web, search="xyzzy")
    evil = page(web, search='"><script>alert(1)</script>')
    assert "<script>alert" not in evil
    assert web.nobody.get("/docs", params={"search": "x" * 201}).status_code == 422
