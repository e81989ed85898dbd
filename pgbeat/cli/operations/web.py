"""`pgbeat web`: the REST API and the console."""

import logging
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click
from sqlalchemy.exc import DBAPIError

from pgbeat.access import sign_in_links, tokens
from pgbeat.cli.terminal import browsers, printing
from pgbeat.cli.terminal.failures import BadInput, unreachable
from pgbeat.cli.terminal.options import FLAG, option
from pgbeat.cli.terminal.target import Target, pass_target
from pgbeat.database import privileges
from pgbeat.database.migrations import migrate
from pgbeat.errors import SchemaError

if TYPE_CHECKING:
    from celery import Celery

Say = Callable[[str], object]


def _root(path: str) -> str:
    path = path.rstrip("/")
    if path and (not path.startswith("/") or "//" in path or not path.isprintable()):
        raise click.BadParameter(f"{path!r} is not a path; write for example /pgbeat")
    return path


@click.command("web")
@option("--host", "TEXT", "The address to listen on.", default="127.0.0.1")
@option("--port", click.IntRange(0, 65535), "The port; 0 for any free one.", default=8080)
@option("--workers", click.IntRange(1, 64), "Processes that serve.", default=1)
@option(
    "--root-path",
    "PATH",
    "Its path behind a proxy, such as /pgbeat.",
    default="",
    show_default=False,
    type=_root,
)
@option("--demo", FLAG, "Everyone on this machine is an administrator, without a token.")
@click.option(
    "--link/--no-link",
    "wants_link",
    default=None,
    help="Print a link that signs you in as an administrator, once. By default on a terminal, "
    "unless --host is reached from other machines.",
)
@option("--open", FLAG, "Open the console in the browser, signed in by such a link.", "opens")
@option("--access-log", FLAG, "Log each request.")
@pass_target
def web_command(
    target: Target,
    host: str,
    port: int,
    workers: int,
    root_path: str,
    demo: bool,
    wants_link: bool | None,
    opens: bool,
    access_log: bool,
) -> None:
    """Serve the REST API and the console, until Ctrl-C. Needs the app.

    On a terminal it prints a link that signs you in. Others need a token of `pgbeat tokens create`,
    or a JWT of the team's own issuer. It listens only on this machine unless --host says otherwise;
    put a proxy with TLS before it then.
    """
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise BadInput("the web side needs more packages: pip install 'pgbeat[web]'")
    from pgbeat.web import create_app, serving
    from pgbeat.web.identity import is_loopback

    app = target.require_app("the web side needs the app, whose tasks and schedules it serves")
    is_private = is_loopback(host)
    if demo and not is_private:
        raise BadInput(f"--demo lets everyone in, so not on {host}; use 127.0.0.1")
    say, note = _log(app, access_log=access_log)
    if wants_link is None:
        wants_link = is_private and sys.stdout.isatty()
    with closing(_listen(host, port)) as sock, ExitStack() as stack:
        rest = f":{sock.getsockname()[1]}{root_path}/"
        link, here = _url(host, rest), _url(_HERE.get(host, host), rest)

        def ready() -> None:
            say(f"pgbeat is at {link} (documentation of the API: {link}docs)")
            makes_link = wants_link or opens
            signs_in = (
                None if demo else _remark(target, note, is_private=is_private, link=makes_link)
            )
            if signs_in and wants_link:
                minutes = sign_in_links.LIFETIME // timedelta(minutes=1)
                say(f"To sign in, open this link within {minutes} minutes. It works once:")
                say(f"  {here}{signs_in}")
            if opens:
                stack.enter_context(browsers.opened(here + (signs_in or "")))
            say("Ctrl-C ends it.")

        make = partial(create_app, app, target.settings, demo=demo)
        serving.serve(make, sock, workers=workers, root_path=root_path, ready=ready)
    say("Stopped.")


#: Addresses of all interfaces, and how this machine reaches itself.
_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104


def _url(host: str, rest: str) -> str:
    return f"http://[{host}]{rest}" if ":" in host else f"http://{host}{rest}"


def _listen(host: str, port: int) -> socket.socket:
    from pgbeat.web import serving

    try:
        return serving.listen(host, port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise click.ClickException(
            f"can't listen on {host} port {port}: {reason}; try another --port or --host"
        ) from None
    except OverflowError:  # a name without an address, as bytes
        raise BadInput(f"{host!r} is not an address") from None


def _log(app: "Celery", *, access_log: bool) -> tuple[Say, Say]:
    """Logs errors to standard error, and each request if `access_log` says so.

    Returns what tells the user something, and what warns: the log itself, if it is in JSON.
    """
    from pgbeat.log import use_json

    logging.basicConfig(format="[%(asctime)s: %(levelname)s/%(process)d] %(message)s")
    logging.getLogger("uvicorn.access").setLevel(logging.INFO if access_log else logging.WARNING)
    if not use_json(app):
        return click.echo, printing.note
    logger = logging.getLogger("pgbeat.web")
    logger.setLevel(logging.INFO)
    return logger.info, logger.warning


def _remark(target: Target, note: Say, *, is_private: bool, link: bool) -> str | None:
    """Makes remarks on the database, on missing tokens and on missing TLS.

    Returns the end of the sign-in link if it is wanted and the database can be reached.
    """
    settings, signs_in = target.settings, None
    try:
        with target.transaction() as connection, privileges.required():
            migrate.check(connection, reads_schedules=True)
            migrate.warn_if_incomplete(connection)
            has_tokens = tokens.exist(connection, namespace=settings.namespace)
            if link:
                signs_in = "login#once=" + sign_in_links.create(
                    connection, namespace=settings.namespace, actor=target.user.name, scope="admin"
                )
    except SchemaError as error:
        note(f"{error}.")
    except DBAPIError as error:
        note(f"{unreachable(error, target)}; it is tried again at each request.")
    else:
        if not (signs_in or has_tokens or settings.web_jwt_key or settings.web_jwt_jwks):
            note(
                "there is no token, so no user can log in; `pgbeat tokens create --for NAME "
                "--scope admin` makes one."
            )
    if not is_private:
        note("it speaks plain HTTP beyond this machine; put a proxy with TLS before it.")
    return signs_in
