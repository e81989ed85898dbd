"""Publishers and workers of the benchmark of brokers."""

import subprocess

from beats.processes import Processes

from brokers.spec import Spec


class Workers(Processes):
    """Starts `brokers.child` and real workers."""

    commands = "brokers.child"

    def worker(
        self, spec: Spec, pool: str, concurrency: int, name: str = "worker"
    ) -> subprocess.Popen[str]:
        """Starts a real `celery worker`, with the defaults of everything else."""
        return self.celery(
            spec.within(name).with_options(spec.worker_options),
            "-A",
            "brokers.app",
            "worker",
            "-l",
            "ERROR",
            "-P",
            pool,
            "-c",
            str(concurrency),
            "-n",
            f"{name}@%h",
        )
