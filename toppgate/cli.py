"""The commands.  The only place that exits, and the only one that prints for a user.

Exit status: ``run`` and ``seal`` 0 PASS, 1 STOP, 2 could not judge; ``verify`` 0 agrees, 1 a difference, 2 unreadable
or unsealed; ``diff`` 0 no row differs, 1 some do, 2 unreadable or unsealed; ``mutants`` 0 none survived, 1 some did, 2
could not judge; the others 0 or 2.
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from toppgate.errors import ToppgateError, printable

_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else there.")
_dir = click.argument("directory", type=click.Path(path_type=Path))
_params = click.argument("params", type=click.Path(path_type=Path))


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(package_name="toppgate")
def cli() -> None:
    """Decide, row by row, whether a change to vLLM's split top-p kernel is an improvement without a regression."""


def main() -> NoReturn:
    """Run the command line; a user's mistake is one line and exit status 2."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        cli.main(standalone_mode=False)
    except ToppgateError as error:
        _fail(str(error))
    except click.ClickException as error:
        _fail(error.format_message())
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted; nothing was left that counts as a run")
    except OSError as error:
        _fail(f"{error.filename or 'file system'}: {error.strerror or error}")
    except MemoryError as error:
        _fail(f"not enough memory: {error}")
    sys.exit(0)


def _terminated(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _fail(message: str) -> NoReturn:
    click.echo(f"toppgate: {ToppgateError(message)}", err=True)
    sys.exit(2)


@cli.command()
@_params
@click.option("--out", type=click.Path(path_type=Path), help="Where the run goes; default reports/<params stem>.")
@_json
def run(params: Path, out: Path | None, as_json: bool) -> None:
    """Execute, judge and seal a frozen PARAMS file."""
    from toppgate import run as runner  # noqa: PLC0415 - commands import what they need

    began = time.monotonic()
    sealed = runner.run(params, out, show=not as_json and sys.stderr.isatty())
    _report(sealed.directory, sealed.verdict, sealed.receipt_sha256, as_json, time.monotonic() - began)


@cli.command()
@_dir
@_json
def seal(directory: Path, as_json: bool) -> None:
    """Render, hash and seal a run DIRECTORY whose notebooks were executed."""
    from toppgate import seal as sealer  # noqa: PLC0415

    sealed = sealer.seal(_existing(directory))
    _report(sealed.directory, sealed.verdict, sealed.receipt_sha256, as_json, None)


def _report(directory: Path, verdict: dict[str, Any], receipt: str, as_json: bool, seconds: float | None) -> NoReturn:
    from toppgate import show as shower  # noqa: PLC0415

    def text() -> None:
        for line in shower.verdict_lines(verdict):
            click.echo(line)
        if seconds is not None:
            click.echo(f"wall time   {seconds:.0f} s")
        click.echo(f"report      {directory / '3_gate.html'}")

    keys = ("verdict", "first_stop", "stops", "counts", "banners")
    _say({key: verdict[key] for key in keys} | {"run_dir": str(directory), "receipt_sha256": receipt}, text, as_json)
    sys.exit(0 if verdict["verdict"] == "PASS" else 1)


@cli.command()
@_dir
@click.option("--key", type=click.Path(path_type=Path), required=True, help="An ed25519 private key, a PEM file.")
@_json
def sign(directory: Path, key: Path, as_json: bool) -> None:
    """Verify a sealed run DIRECTORY and sign its receipt, beside it."""
    from toppgate import signing  # noqa: PLC0415
    from toppgate import verify as verifier  # noqa: PLC0415

    found = verifier.verify(_existing(directory))
    if found.difference is not None:
        raise ToppgateError(f"{directory}: not signed, since it does not verify: {found.difference}")
    keyid, path = signing.sign(directory, key), directory / signing.NAME
    result = {"verdict": found.verdict, "keyid": keyid, "signature": str(path)}
    _say(result, lambda: click.echo(f"signed      {path}: {found.verdict}, key {keyid}"), as_json)


@cli.command()
@_dir
@click.option(
    "--key", type=click.Path(path_type=Path), help="Ask for a signature by this ed25519 public key, a PEM file."
)
@_json
def verify(directory: Path, key: Path | None, as_json: bool) -> None:
    """Re-derive everything in a sealed run DIRECTORY from its bytes."""
    from toppgate import verify as verifier  # noqa: PLC0415

    found = verifier.verify(_existing(directory), key)

    def text() -> None:
        for note in found.notes:
            click.echo(f"note        {note}")
        click.echo(f"verify      {found.difference or 'every digest, row and the verdict were re-derived and agree'}")
        click.echo(f"verdict     {found.verdict}")

    result = {"agrees": found.difference is None, "difference": found.difference, "notes": list(found.notes)}
    _say(result | {"verdict": found.verdict, "run_dir": str(directory)}, text, as_json)
    sys.exit(0 if found.difference is None else 1)


@cli.command()
@_params
@_json
def freeze(params: Path, as_json: bool) -> None:
    """Resolve and write every digest of a PARAMS file, or of a ladder."""
    from toppgate import freeze as freezer  # noqa: PLC0415
    from toppgate import ladder  # noqa: PLC0415

    frozen = ladder.frozen(params).frozen if ladder.is_one(params) else freezer.freeze(params).frozen
    digest = "" if frozen is None else frozen.sha256
    _say({"params": str(params), "sha256": digest}, lambda: click.echo(f"frozen      {params}: {digest}"), as_json)


@cli.command()
@_dir
@click.option("--case", help="Show the rows of this case.")
@click.option("--row", type=int, help="Show this row of the case, with the tokens around its boundary.")
@_json
def show(directory: Path, case: str | None, row: int | None, as_json: bool) -> None:
    """Show the verdict of a run DIRECTORY, the rows of a case, or one row."""
    from toppgate import show as shower  # noqa: PLC0415

    if row is not None and case is None:
        raise click.UsageError("--row needs --case")
    _existing(directory)

    with _unverified(directory):
        lines = [] if as_json else list(shower.lines(directory, case, row))
        found: dict[str, Any] = {"verdict": shower.verdict(directory)} if case is None else {}
        if case is not None:
            found = {"rows": shower.rows(directory, case, row)}
            if row is not None:
                found["boundary"] = shower.boundary(directory, case, row)
    _say(found, lambda: _echo(lines), as_json)


@cli.command()
@click.argument("before", metavar="RUN_A", type=click.Path(path_type=Path))
@click.argument("after", metavar="RUN_B", type=click.Path(path_type=Path))
@_json
def diff(before: Path, after: Path, as_json: bool) -> None:
    """Show what is otherwise in RUN_B than in RUN_A: rows that changed, appeared or vanished."""
    from toppgate import diff as differ  # noqa: PLC0415

    with _unverified(f"{before}, {after}"):
        found = differ.diff(_existing(before), _existing(after))
        lines = list(differ.lines(found))
    _say({"changed": found.rows, **found.plain()}, lambda: _echo(lines), as_json)
    sys.exit(1 if found.rows else 0)


@cli.command()
@_dir
@click.argument("case")
@click.argument("number", metavar="ROW", type=click.IntRange(min=0))
@click.option("--export", type=click.Path(path_type=Path), help="Write the row here, to attach to an issue.")
@click.option("--shrink", is_flag=True, help="Make the exported row as small as it gets with the same code and cause.")
@_json
def row(directory: Path, case: str, number: int, *, export: Path | None, shrink: bool, as_json: bool) -> None:
    """Run a row of a run DIRECTORY again, on the interpreter, and show why the kernel kept what it kept."""
    from toppgate import apart  # noqa: PLC0415

    if shrink and export is None:
        raise click.UsageError("--shrink needs --export")
    _existing(directory)
    if export is None:
        found = apart.traced(directory, case, number)
    else:
        found = apart.exported(directory, case, number, export, shrinking=shrink)

    def text() -> None:
        for line in found.lines:
            click.echo(line)

    _say(found.plain, text, as_json)


@cli.command()
@_params
@click.option("--out", type=click.Path(path_type=Path), help="Where the page goes; default reports/<params stem>.")
@click.option("--only", multiple=True, metavar="NAME", help="Run this mutant alone; may be given several times.")
@click.option("--search", is_flag=True, help="Search 100,000 rows for each mutant that lives: hours without a GPU.")
@_json
def mutants(params: Path, out: Path | None, only: tuple[str, ...], search: bool, as_json: bool) -> None:
    """Run wrong kernels over a frozen PARAMS file and say which of them no row stops."""
    from toppgate import kills, mutations  # noqa: PLC0415
    from toppgate import mutants as runner  # noqa: PLC0415

    began = time.monotonic()
    directory, record = runner.mutants(params, out, mutations.MUTANTS, only=only, searching=search, told=_told(as_json))

    def text() -> None:
        for line in kills.lines(record):
            click.echo(line)
        click.echo(f"wall time   {time.monotonic() - began:.0f} s")
        click.echo(f"page        {directory / 'mutants.html'}")

    keys = ("catalogue", "mutants", *runner.OUTCOMES, "killed_by_evidence_alone", "patch_stops", "table")
    _say({key: record[key] for key in keys} | {"directory": str(directory)}, text, as_json)
    sys.exit(0 if record["survived"] == 0 else 1)


@cli.command()
@_params
@click.option("--out", type=click.Path(path_type=Path), help="Where the runs go; default reports/<params stem>.")
@_json
def sweep(params: Path, out: Path | None, as_json: bool) -> None:
    """Run every kernel of a frozen ladder, PARAMS, over one matrix: a sealed run each, and one page of all."""
    from toppgate import rungs  # noqa: PLC0415
    from toppgate import sweep as sweeper  # noqa: PLC0415

    began = time.monotonic()
    directory, record = sweeper.sweep(params, out, _told(as_json))

    def text() -> None:
        for line in rungs.lines(record):
            click.echo(line)
        click.echo(f"wall time   {time.monotonic() - began:.0f} s")
        click.echo(f"page        {directory / 'ladder.html'}")

    _say(record | {"directory": str(directory)}, text, as_json)


@cli.command()
@_params
@click.option("--out", type=click.Path(path_type=Path), help="Where the page goes; default reports/<stem>-bisect.")
@_json
def bisect(params: Path, out: Path | None, as_json: bool) -> None:
    """Say which hunks of the diff of a frozen PARAMS file fix and which break the rows that stop."""
    from toppgate import bisection, blame  # noqa: PLC0415

    began = time.monotonic()
    directory, record = bisection.bisect(params, out, _told(as_json))

    def text() -> None:
        for line in blame.lines(record):
            click.echo(line)
        click.echo(f"wall time   {time.monotonic() - began:.0f} s")
        click.echo(f"page        {directory / 'bisection.html'}")

    _say(record | {"directory": str(directory)}, text, as_json)


@cli.command()
@_params
@click.option(
    "--rows", type=click.IntRange(min=1, max=10**8), default=1000, show_default=True, help="How many rows, at least."
)
@click.option("--seed", type=click.IntRange(min=0, max=2**31 - 1), default=1, show_default=True, help="Which rows.")
@click.option("--out", type=click.Path(path_type=Path), help="Where rows and record go; default reports/<stem>-hunt.")
@click.option("--engine", default="loky", show_default=True, help="loky, dask or ray.")
@click.option("--address", help="A running cluster of dask or ray, HOST:PORT; else workers are started here.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes; default one a core, or one a GPU.")
@_json
def hunt(params: Path, as_json: bool, **how: Any) -> None:
    """Look for rows that break the patch of a PARAMS file: exploratory, never evidence."""
    from toppgate import hunt as hunter  # noqa: PLC0415

    directory, record = hunter.hunt(
        params, how.pop("out"), how.pop("rows"), how.pop("seed"), told=_told(as_json, ""), **how
    )

    def text() -> None:
        for line in hunter.lines(record):
            click.echo(line)
        click.echo(f"record      {directory / 'hunt.json'}")
        if (directory / "rows.yml").is_file():
            click.echo(f"next        toppgate run {directory / 'rows.yml'}")

    _say(record | {"directory": str(directory)}, text, as_json)


def _told(as_json: bool, before: str = "ran ") -> Callable[[str], object]:
    """Return what is told of each kernel that is done: a line, where somebody watches."""
    watched = not as_json and sys.stderr.isatty()
    return (lambda name: click.echo(f"{before}{name}", err=True)) if watched else str


@contextmanager
def _unverified(directory: object) -> Iterator[None]:
    """What is shown was verified by nobody: a file that holds what no run holds ends in one line as well."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        problem = f"{directory}: holds what no run holds ({type(error).__name__}); toppgate verify says where"
        raise ToppgateError(problem) from None


def _echo(lines: Iterable[str]) -> None:
    """Print lines that quote a run's files, which may hold what a terminal would obey."""
    for line in lines:
        click.echo(printable(line))


def _existing(directory: Path) -> Path:
    if not directory.is_dir():
        raise ToppgateError(f"{directory}: not a directory")
    return directory


def _say(result: dict[str, Any], text: Callable[[], None], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result))
    else:
        text()
