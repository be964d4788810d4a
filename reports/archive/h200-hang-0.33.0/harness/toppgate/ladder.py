"""The ladder file: many kernels over one matrix, against one stock, frozen once.

It says what a params file says, but for ``kernels`` in the place of ``patch``: a list of ``id`` and ``source``, oldest
first.  ``freeze`` pins each kernel's text, its diff from stock, its slices in every case, and the digest of the params
file that its own run will get.  ``rung`` derives that file from the ladder's values alone, so each run of a ladder is a
run like any other, and adding a release is one entry.  Rows are the same for every kernel: no case has ``select``.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic

from toppgate import digests, faults, freeze, host, params, plain_yaml, published, source
from toppgate.errors import ParamsError
from toppgate.freeze import Sources
from toppgate.schema import CALLABLE_PATH, SPLIT_PATH, Case, Ladder, Params, Rung

Values = Mapping[str, Any]


def is_one(path: Path) -> bool:
    """Return whether a file lists kernels, as a ladder does and no params file.  Raises ``ParamsError``."""
    values = params.values_of(path)
    return isinstance(values, dict) and "kernels" in values


def read(path: Path) -> Ladder:
    """Return a frozen ladder.

    Raises ``ParamsError`` where the file breaks a rule, was edited since it was frozen, or a kernel's own params come
    out otherwise than they were frozen.
    """
    checked = _check(params.values_of(path), str(path))
    values = checked.values()
    if checked.frozen is None:
        raise ParamsError(f"{path}: frozen: got nothing, expected the digests that toppgate freeze writes")
    have, want = checked.frozen.model_dump(), params.freeze_digest(values)
    if have != want:
        first = params.first_difference(have, want)
        raise ParamsError(f"{path}: params_drift: {first} differs from what was frozen; freeze again")
    if dump(checked) != path.read_bytes():
        raise ParamsError(f"{path}: not in freeze's own form, so it was edited; freeze it again")
    for each in checked.kernels:
        got = None if is_stock(checked, each) else frozen_of(rung(checked, each))
        if got != each.frozen:
            raise ParamsError(f"{path}: params_drift: kernels[{each.id}] comes out otherwise than it was frozen")
    return checked


def dump(ladder: Ladder) -> bytes:
    """Return the file in freeze's own form; a function of the values only."""
    return params.HEADER + plain_yaml.dump(ladder.values())


def is_stock(ladder: Ladder, each: Rung) -> bool:
    """Return whether a kernel is stock itself, which by the contract is no patch (``patch_drift``)."""
    return each.source.sha256 is not None and each.source.sha256 == ladder.stock.sha256


def rung(ladder: Ladder, each: Rung) -> Params:
    """Return the frozen params of one kernel's run; a function of the ladder's values only."""
    values = _rung(ladder.values(), each.model_dump(mode="json", exclude_unset=True))
    found = params.check(values, f"kernels[{each.id}]")
    params.check_frozen(found, f"kernels[{each.id}]")
    return found


def frozen_of(checked: Params) -> str | None:
    """Return the frozen digest of params."""
    return None if checked.frozen is None else checked.frozen.sha256


def _rung(values: Values, each: Values) -> dict[str, Any]:
    """Put one kernel in the patch's place; what is not frozen yet stays out."""
    found = {**values, "title": f"{values['title']}: {each['id']}", "patch": each["source"]}
    function = values["stock"]["kind"] == "callable"
    found["path"] = {"stock": CALLABLE_PATH if function else SPLIT_PATH, "patch": each.get("path", SPLIT_PATH)}
    if "slices" not in each:
        return freeze.in_order({key: found[key] for key in found if key != "frozen"})
    found["change"] = each["change"]
    cut = zip(values["cases"], values["slices"], each["slices"], strict=True)
    sliced = [{**case, "slices": {"stock": stock, "patch": own}} for case, stock, own in cut]
    found["cases"] = [{name: case[name] for name in Case.model_fields if name in case} for case in sliced]
    found = freeze.in_order(found)
    return {**found, "frozen": params.freeze_digest(found)}


def _check(values: Any, name: str) -> Ladder:
    """Return a ladder that keeps the rules of a params file with each of its kernels."""
    if isinstance(values, dict) and "patch" in values and "kernels" not in values:
        raise ParamsError(f"{name}: patch: got params of one run, expected a ladder; toppgate run runs them")
    try:
        ladder = Ladder.model_validate(values)
    except pydantic.ValidationError as error:
        raise ParamsError(f"{name}: {faults.explain(error, values, Ladder)}") from None
    problem = next(_problems(ladder), None)
    if problem is not None:
        raise ParamsError(f"{name}: {problem}")
    params.check(_rung(ladder.values(), ladder.kernels[0].model_dump(mode="json", exclude_unset=True)), name)
    return ladder


def _problems(ladder: Ladder) -> Iterator[str]:
    ids = [each.id.lower() for each in ladder.kernels]
    for each in ladder.kernels:
        if ids.count(each.id.lower()) > 1:
            yield f"kernels[{each.id}].id: stands twice; expected ids that differ in letters"
    for case in ladder.cases:
        if case.select is not None:
            yield f"cases[{case.id}].select: got a sequence, expected a seed: the rows are the same for every kernel"
    cuts = [("slices", ladder.slices), *((f"kernels[{each.id}].slices", each.slices) for each in ladder.kernels)]
    for name, cut in cuts:
        if cut is not None and len(cut) != len(ladder.cases):
            yield f"{name}: got {len(cut)} values, expected one for each of {len(ladder.cases)} cases"


# ---------------------------------------------------------------------------------------------- freezing


def frozen(path: Path) -> Ladder:
    """Rewrite a ladder file with every digest in place, and return it.

    Side effects: replaces ``path``; its comments are not kept.  Raises ``ParamsError``, ``SourceError``,
    ``InputError``; of an unedited frozen file, anything that comes out otherwise than it was frozen is refused.
    """
    given = params.values_of(path)
    draft = _check(given, str(path))
    if draft.frozen is None or draft.frozen.model_dump() != params.freeze_digest(draft.values()):
        draft = _check(params.given(given), str(path))
    found = _check(_resolved(draft), str(path))
    if draft.frozen is not None and draft.frozen != found.frozen:
        raise ParamsError(f"{path}: comes out otherwise than it was frozen; to freeze it anew, drop frozen")
    freeze.replace(path.resolve(), dump(found))
    return found


def _resolved(draft: Ladder) -> dict[str, Any]:
    """Return a draft's values with all that freeze derives."""
    values = draft.values()
    stock = source.resolve(values["stock"], published.cache())
    values["stock"] = freeze.pinned(values["stock"], stock)
    values["host"]["tree"] = host.provide(values["host"], published.cache()).sha256
    cases = [freeze.case_of(case, Sources(stock, stock), values) for case in draft.cases]
    values["slices"] = [case.pop("slices")["stock"] for case in cases]
    values["cases"] = cases
    values["kernels"] = [_pinned(each, stock, values) for each in draft.kernels]
    values = {name: values[name] for name in Ladder.model_fields if name in values and name != "frozen"}
    return {**values, "frozen": params.freeze_digest(values)}


def _pinned(each: Rung, stock: source.Source, values: Values) -> dict[str, Any]:
    spec = each.source.model_dump(mode="json", exclude_unset=True)
    own = source.resolve(spec, published.cache())
    plan, units = source.plan(own.data), values["compute_units"]
    shapes = [(*case["shape"], case.get("compute_units") or units) for case in values["cases"]]
    cut = [plan and plan(batch, vocabulary, units) for batch, vocabulary, units in shapes]
    same = own.sha256 == stock.sha256
    found = {
        "id": each.id,
        "source": freeze.pinned(spec, own),
        "path": freeze.path_of(spec, each.path),
        "change": None if same else freeze.change_of(Sources(stock, own)),
        "slices": cut,
    }
    digest = None if same else digests.Sha256(_rung(values, found)["frozen"]["sha256"])
    return {**found, "frozen": digest}
