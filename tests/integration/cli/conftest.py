"""The app of the tests of the command line."""

from tests.support.jobs import app as app
