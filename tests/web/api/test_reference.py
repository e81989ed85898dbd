"""`/docs`: the API's reference, made from its OpenAPI document, with nothing from elsewhere."""

from typing import Any

import pytest

from pgbeat.web.pages.reference import prose
from pgbeat.web.reference import Reference
from tests.support.pages import Page, html
from tests.support.web import Web

#: Bytes that a page may have.
LARGEST = 150_000
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
    [model] = found.models_of([operation])
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


def test_an_operation_has_the_models_of_its_models_once() -> None:
    schemas = {
        "Lane": {"properties": {"a": {"$ref": "#/components/schemas/Limit"}, "b": {}}},
        "Limit": {"properties": {"c": {"$ref": "#/components/schemas/Lane"}}},
        "Other": {"properties": {}},
    }
    found = Reference({**DOCUMENT, "components": {"schemas": schemas}})
    models = found.models_of(found.sections[0].operations)
    assert [model.name for model in models] == ["Lane", "Limit"]


def page(web: Web, path: str = "/docs", **query: str) -> Page:
    return html(web.nobody.get(path, params=query))


def test_every_operation_and_every_model_has_a_place(web: Web) -> None:
    document = web.app.openapi()
    keys = {
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    }
    front = page(web)
    links = {each.get("href") for each in front.all("section .operation a")}
    assert all(path in front for path in document["paths"])
    assert {link.partition("#")[2] for link in links} == keys
    shown = set()
    for path in sorted({link.partition("#")[0] for link in links}):
        section = page(web, path)
        assert len(section.encode()) <= LARGEST
        ids = section.tree.xpath("//@id")
        # Each link within the page leads somewhere, and no id is there twice.
        assert len(ids) == len(set(ids))
        assert {each.get("href")[1:] for each in section.all("[href^='#']")} <= set(ids)
        assert {link for link in links if link.startswith(f"{path}#")} <= {
            f"{path}#{each}" for each in ids
        }
        shown |= set(ids)
    assert {f"model-{name}" for name in document["components"]["schemas"]} <= shown
    assert web.nobody.get("/docs/nothing").status_code == 404


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
    assert 'href="#model-LaneDone"' in text
    assert 'id="model-LaneDone"' in text
    assert "<details" not in page(web, search="lane")
    assert "No operation has these words" in page(web, search="xyzzy")
    evil = page(web, search='"><script>alert(1)</script>')
    assert "<script>alert" not in evil
    assert web.nobody.get("/docs", params={"search": "x" * 201}).status_code == 422
