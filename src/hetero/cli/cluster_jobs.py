"""`hetero cluster submit`, `jobs`, `logs`, `cancel` and `serve`: programs that a cluster runs or ran.

In: a script, its arguments, where the cluster is; or the name of a job. Out: the program's words and its exit code, a
table or JSON. The work is in `hetero.engines.ray.job_client`; nothing of the program runs here.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import AsJson, ClusterAddress
from hetero.cli.output import console, note, print_json, say
from hetero.floor.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hetero.engines.ray.job_client import JobClient
    from hetero.floor.documents import JsonObject

__all__ = ["cancel", "jobs", "logs", "serve", "submit", "tell"]

TokenFile = Annotated[Path | None, typer.Option(help="File with the cluster's token; default: that of this host.")]
Certificates = Annotated[
    Path | None, typer.Option(help="Folder of 'hetero cluster certificates'; default: that of this host's node.")
]
Job = Annotated[str, typer.Argument(help="Name of the job.")]


def submit(
    script: Annotated[Path, typer.Argument(help="Python file to run on the cluster.")],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    address: ClusterAddress = "auto",
    token_file: TokenFile = None,
    certificates: Certificates = None,
    working_dir: Annotated[
        Path | None, typer.Option(help="Folder that travels too, the script in it; default: the script alone.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option(help="Variable for it, NAME=VALUE; may be repeated.")] = None,
    pip: Annotated[list[str] | None, typer.Option(help="Package to install for it; may be repeated.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Print the name of the job, and do not wait.")] = False,
) -> None:
    """Run a program on a cluster; it finds the devices of all hosts.

    What it prints comes out here, and the command ends with its exit code.
    """
    from hetero.engines.ray.job_package import pack, read_variables

    client = job_client(address, token_file, certificates)
    variables = read_variables(env or ())
    inside, archive = pack(script, working_dir)
    words: dict[str, object] = {
        "script": inside,
        "arguments": args or [],
        "variables": variables,
        "packages": pip or [],
    }
    answers = client.ask("submit", archive, follow=not detach, **words)
    job = next(answers)["job"]
    if detach:
        print(job)
        return
    note(f"hetero: job {job} is submitted")
    try:
        raise typer.Exit(tell(answers))
    except KeyboardInterrupt:
        print(
            f"hetero: job {job} goes on; see 'hetero cluster logs --follow {job}' and 'hetero cluster cancel {job}'",
            file=sys.stderr,
        )
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def job_client(address: str, token_file: Path | None, certificates: Path | None) -> JobClient:
    """Return the client of a cluster's job server."""
    from hetero.engines.ray.job_client import client_for

    return client_for(address, token_file, certificates)


def tell(answers: Iterable[JsonObject]) -> int:
    """Show what a program prints; return its exit code, 0 where it goes on."""
    code = 0
    for answer in answers:
        if "text" in answer:
            print(answer["text"], end="", flush=True)
        elif "cold_start_s" in answer:
            note(f"hetero: its program began after a cold start of {answer['cold_start_s']:.1f} s")
        else:
            code = answer["exit_code"] or 0
            took = "" if answer["took_s"] is None else f" after {answer['took_s']:.1f} s"
            how = f", exit code {code}" if answer["state"] == "failed" else ""
            why = f": {answer['why']}" if answer["why"] else ""
            note(f"hetero: job {answer['job']} {answer['state']}{took}{how}{why}")
    return code


def jobs(
    address: ClusterAddress = "auto",
    token_file: TokenFile = None,
    certificates: Certificates = None,
    json: AsJson = False,
) -> None:
    """List the jobs, the latest first."""
    found = list(job_client(address, token_file, certificates).ask("list"))
    print_json({"jobs": found}) if json else _print(found)


def logs(
    job: Job,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends, and end as it ends.")] = False,
    address: ClusterAddress = "auto",
    token_file: TokenFile = None,
    certificates: Certificates = None,
) -> None:
    """Show what the program of a job printed."""
    code = tell(job_client(address, token_file, certificates).ask("logs", job=job, follow=follow))
    raise typer.Exit(code if follow else 0)


def cancel(
    job: Job,
    address: ClusterAddress = "auto",
    token_file: TokenFile = None,
    certificates: Certificates = None,
    json: AsJson = False,
) -> None:
    """Stop a job; one that is over stays as it ended."""
    answers = job_client(address, token_file, certificates).ask("cancel", job=job)
    if json:
        print_json(list(answers)[-1])
    else:
        tell(answers)


def serve(json: AsJson = False) -> None:
    """Start the job server of this host's head again, after it has ended; jobs go on without it and are found again."""
    from hetero.engines.ray.node import serve_jobs

    jobs = serve_jobs().jobs
    print_json({"jobs": jobs}) if json else say(f"jobs are taken at {jobs}")


def _print(jobs: list[JsonObject]) -> None:
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
