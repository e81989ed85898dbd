"""Reads the console's pages as a browser does: their words, forms, errors, links and tables."""

from functools import cached_property
from typing import Any

from httpx import Response
from lxml import html as parser

#: What somebody might write where others read it.
EVIL = "<script>alert('x')</script>\"'&{{7*7}}"


class Page(str):
    """The source of a page, with what is found in it."""

    @cached_property
    def tree(self) -> Any:
        """Returns the page as a tree of elements."""
        return parser.document_fromstring(self)

    def all(self, selector: str) -> list[Any]:
        """Finds elements by a CSS selector."""
        return list(self.tree.cssselect(selector))

    def one(self, selector: str) -> Any:
        """Finds the only element of a CSS selector."""
        [found] = self.all(selector)
        return found

    @property
    def words(self) -> str:
        """Returns the text that a person reads, with single blanks."""
        return words_of(self.tree)

    @property
    def rows(self) -> list[str]:
        """Returns the heads of the rows of its lists."""
        return [words_of(each) for each in self.all("[scope=row]")]

    @property
    def next(self) -> str:
        """Returns the address of its link to the next page."""
        return str(self.one("[rel=next]").get("href"))

    @property
    def alert(self) -> str:
        return words_of(self.one("[role=alert]"))

    @property
    def fields(self) -> dict[str, str]:
        """Returns the last form of its main part, filled in as it is."""
        return _fields(self.all("main form")[-1])

    @property
    def edit(self) -> dict[str, str]:
        """Returns the form that changes a thing, filled in as it is."""
        return _fields(self.one("details.edit form")) | {"do": "edit"}

    @property
    def wrong(self) -> dict[str, str]:
        """Returns the errors beside fields; each is tied to its field for screen readers."""
        found = {each.get("id")[2:]: words_of(each) for each in self.all(".wrong[id^=e-]")}
        for field in found:
            assert self.all(f"[aria-describedby~='e-{field}']"), field
        return found

    def has_no_script_inside(self) -> bool:
        """Returns whether all scripts and styles are files, one script at the most."""
        return not self.all("script:not([src]), style, [style]") and not self.tree.xpath(
            "//@*[starts-with(name(), 'on')]"
        )


def words_of(element: Any) -> str:
    """Returns the text of an element that a person reads, with single blanks."""
    texts = element.xpath(".//text()[not(ancestor::script or ancestor::style or ancestor::svg)]")
    return " ".join(" ".join(texts).split())


def _fields(form: Any) -> dict[str, str]:
    # The line break after a <textarea> is none of its text.
    return {name: value.removeprefix("\n") for name, value in form.form_values()}


def html(response: Response, status: int = 200) -> Page:
    """Returns the page that an answer holds."""
    assert response.status_code == status, response.text[-2000:]
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    return Page(response.text.replace("<wbr>", ""))


def after(page: Any, response: Response) -> Page:
    """Returns the page that a form leads to."""
    assert response.status_code == 303, response.text[-2000:]
    return html(page.get(response.headers["location"]))
