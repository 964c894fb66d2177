"""`hetero jobs`: the programs that a cluster runs or ran: their states, what they printed, their end.

In: options, the name of a job. Out: a table or JSON. The work is in `hetero.engines.ray.job_client`.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import typer

from hetero.cli.output import console, print_json, say
from hetero.cli.submit import Address, Certificates, TokenFile, job_client, tell

__all__ = ["app"]

app = typer.Typer(help="See and stop the programs of a cluster.", no_args_is_help=True, rich_markup_mode=None)
Job = Annotated[str, typer.Argument(help="Name of the job.")]


@app.command()
def ls(
    address: Address = "auto",
    token_file: TokenFile = None,
    certificates: Certificates = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the jobs, the latest first."""
    jobs = list(job_client(address, token_file, certificates).ask("list"))
    print_json({"jobs": jobs}) if json else _print(jobs)


@app.command()
def logs(
    job: Job,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends, and end as it ends.")] = False,
    address: Address = "auto",
    token_file: TokenFile = None,
    certificates: Certificates = None,
) -> None:
    """Show what the program of a job printed."""
    code = tell(job_client(address, token_file, certificates).ask("logs", job=job, follow=follow))
    raise typer.Exit(code if follow else 0)


@app.command()
def cancel(
    job: Job, address: Address = "auto", token_file: TokenFile = None, certificates: Certificates = None
) -> None:
    """Stop a job; one that is over stays as it ended."""
    tell(job_client(address, token_file, certificates).ask("cancel", job=job))


@app.command()
def serve() -> None:
    """Start the job server of this host's head again, after it has ended; jobs go on without it and are found again."""
    from hetero.engines.ray.node import serve_jobs

    say(f"jobs are taken at {serve_jobs().jobs}")


def _print(jobs: list[dict[str, Any]]) -> None:
    if not jobs:
        say("no jobs")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("job", "state", "exit", "submitted", "took", "program"):
        table.add_column(heading, justify="right" if heading in ("exit", "took") else "left", overflow="fold")
    for job in jobs:
        submitted = datetime.datetime.fromtimestamp(job["submitted_s"]).strftime("%Y-%m-%d %H:%M:%S")
        code = "" if job["exit_code"] is None else str(job["exit_code"])
        took = "" if job["took_s"] is None else f"{job['took_s']:.1f} s"
        table.add_row(job["job"], job["state"], code, submitted, took, job["program"])
    console().print(table)
