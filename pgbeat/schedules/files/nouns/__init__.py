"""What a file declares beside schedules: calendars, lanes, templates and webhooks.

noun                                    what a file must know of a noun
calendars, lanes, templates, webhooks   the nouns; each leaves checks and changes to its domain
comparing                               the changes that a section makes
writing                                 makes them
"""

import os
from collections.abc import Mapping

from pgbeat.schedules.files.nouns.calendars import CALENDARS
from pgbeat.schedules.files.nouns.lanes import LANES
from pgbeat.schedules.files.nouns.noun import FileNoun
from pgbeat.schedules.files.nouns.templates import TEMPLATES
from pgbeat.schedules.files.nouns.webhooks import webhooks_in


def nouns(
    environ: Mapping[str, str] | None = None, *, private: bool = False
) -> tuple[FileNoun, ...]:
    """Returns the nouns, each before those that may name it.

    `environ` has the variables that webhooks name, by default this process's; with `private`, their
    URLs may lie in a private network.
    """
    variables = os.environ if environ is None else environ
    return CALENDARS, LANES, TEMPLATES, webhooks_in(variables, private=private)
