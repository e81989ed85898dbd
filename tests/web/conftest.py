"""The app of the tests of the web side."""

from tests.support.jobs import app as app
