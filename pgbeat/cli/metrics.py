"""`pgbeat metrics`: what a scrape of the web side's /metrics is answered."""

import click

from pgbeat.broker.messages import BrokerTables
from pgbeat.cli.failures import BadInput
from pgbeat.cli.target import Target, pass_target
from pgbeat.config import is_own_broker


@click.command("metrics")
@pass_target
def metrics_command(target: Target) -> None:
    """Print the metrics, in Prometheus' text format.

    The web side serves the same at /metrics. Counters are brought up to date by it.
    """
    try:
        from pgbeat.monitoring import prometheus
    except ImportError as error:
        raise BadInput(f"{error}; `pip install 'pgbeat[metrics]'`") from None
    app, settings = target.app, target.settings
    tables: BrokerTables | None = BrokerTables()
    if app is not None:
        is_here = is_own_broker(app.conf, settings.url)
        tables = BrokerTables.named(app.conf.broker_transport_options or {}) if is_here else None
    with target.session() as connection:
        text, _ = prometheus.render(connection, settings, tables)
    click.echo(text.decode(), nl=False)
