"""`pgbeat metrics`: the metrics that the web side serves at /metrics."""

import click

from pgbeat.broker import own_tables
from pgbeat.cli.terminal.failures import BadInput
from pgbeat.cli.terminal.target import Target, pass_target


@click.command("metrics")
@pass_target
def metrics_command(target: Target) -> None:
    """Print the metrics, in Prometheus' text format.

    The web side serves the same at /metrics. This updates the counters.
    """
    try:
        from pgbeat.monitoring.metrics import prometheus
    except ImportError as error:
        raise BadInput(f"{error}; `pip install 'pgbeat[metrics]'`") from None
    settings, app = target.settings, target.app
    has_broker = own_tables.are_expected(settings.url, None if app is None else app.conf)
    with target.session() as connection:
        text, _ = prometheus.render(connection, settings, has_broker, target.replica)
    click.echo(text.decode(), nl=False)
