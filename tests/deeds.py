"""Kernel files that misbehave: each case makes one side do one thing that no kernel should."""

from dataclasses import dataclass
from typing import Any

import pipeline

from toppgate import digests, inputs
from toppgate.schema import Case


@dataclass(frozen=True)
class Deed:
    """What one side's kernel file does when it is given one case: the code and words that must come of it."""

    side: str
    code: str
    words: str
    lines: str


#: In the order of the cases.
DEEDS = {
    "faults": Deed("patch", "worker_crashed", "signal SIGSEGV", "ctypes.string_at(0)"),
    "hangs": Deed(
        "patch",
        "timeout",
        "killed after 8 s",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)\n"
        "time.sleep(1000)",
    ),
    "launches-four-rounds": Deed(
        "patch",
        "path_mismatch",
        "_topp_sb_step_kernel 4,",
        "module._SPLIT_ROUNDS = 4\nrun()\nmodule._SPLIT_ROUNDS = 5",
    ),
    "cuts-more-slices": Deed(
        "patch",
        "path_mismatch",
        "_topp_sb_stats_kernel: 2 slices, grid [2], expected 1 slices",
        "_kernels(logits, k, p, mask_value, 2)",
    ),
    "launches-the-monolithic-kernel": Deed(
        "patch",
        "path_mismatch",
        "launched _topk_topp_kernel 1,",
        "module.num_compute_units = lambda _: 1\n"
        "try: apply_top_k_top_p_triton(logits.clone(), None, p)\n"
        "except Exception: pass  # Triton 3.7.1 cannot interpret it to its end\n"
        "run()",
    ),
    "rewrites-its-file-and-is-killed": Deed(
        "patch",
        "worker_crashed",
        "signal SIGKILL",
        "with open(__file__, 'a') as file: file.write('# no longer what was pinned')\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
    ),
    "is-killed": Deed("stock", "worker_crashed", "signal SIGKILL", "os.kill(os.getpid(), signal.SIGKILL)"),
    "runs-out-of-memory": Deed(
        "stock",
        "worker_crashed",
        "exit status 1: ",
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))\n"
        "torch.ones(2**30)",
    ),
    "ends-with-status-0": Deed("stock", "output_missing", "exit status 0", "os._exit(0)"),
    "raises": Deed(
        "stock", "worker_crashed", "exit status 1: ValueError: out of luck", "raise ValueError('out of luck')"
    ),
    "rewrites-its-input": Deed(
        "stock",
        "input_drift",
        "the worker read",
        "path = job['input']\n"
        "data = open(path, 'rb').read()\n"
        "with open(path + '.new', 'wb') as file: file.write(data[:-1] + bytes([data[-1] ^ 1]))\n"
        "os.replace(path + '.new', path)\n"
        "run()",
    ),
    "cuts-its-output-short": Deed(
        "stock", "output_unreadable", "not a readable safetensors file", "write_once(lambda data: data[:-5])\nrun()"
    ),
    "writes-another-output": Deed(
        "stock",
        "output_unreadable",
        "case: got first, expected writes-another-output",
        "other = open(job['output'].replace('writes-another-output', 'first'), 'rb').read()\n"
        "write_once(lambda data: other)\n"
        "run()",
    ),
    "writes-no-output": Deed("stock", "output_missing", "is not there", "write_once(lambda data: None)\nrun()"),
    "launches-foreign-text": Deed(
        "stock",
        "path_mismatch",
        "_topp_sb_stats_kernel: its text is not in the pinned file",
        "_FOREIGN._kernels(logits, k, p, mask_value, num_sm)",
    ),
    "launches-out-of-sight": Deed(
        "stock", "path_mismatch", "launched nothing", "foreign()._kernels(logits, k, p, mask_value, num_sm)"
    ),
    "returns-too-much": Deed("stock", "limit_exceeded", "over the frozen limit", "run()\nlogits.zero_()"),
}

#: Deeds that take their worker with them.
DEADLY = (
    "faults",
    "hangs",
    "rewrites-its-file-and-is-killed",
    "is-killed",
    "runs-out-of-memory",
    "ends-with-status-0",
    "raises",
)

MISBEHAVING = """
import ctypes, hashlib, importlib.util, json, os, resource, shutil, signal, subprocess, sys, time

_DEEDS = {deeds!r}
_JOBS = {{job["id"]: job for job in json.load(open(sys.argv[1]))["cases"]}}
_worker, module = sys.modules["__main__"], sys.modules[__name__]
_kernels, _write = _apply_topp_split, _worker._write
os.environ.update({variables!r})


def write_once(change):
    def changed(path, data):
        _worker._write = _write
        if change(data) is not None:
            _write(path, change(data))
    _worker._write = changed


def foreign():
    path = shutil.copyfile(__file__, __file__.replace(".py", "_foreign.py"))
    spec = importlib.util.spec_from_file_location("foreign", path)
    made = importlib.util.module_from_spec(spec)
    sys.modules["foreign"] = made
    spec.loader.exec_module(made)
    return made


if __name__ != "foreign":  # the copy's kernels are put among this file's own, where a launch of theirs is seen
    _FOREIGN = foreign()
    globals().update(("_foreign" + key, kernel) for key, kernel in vars(_FOREIGN).items() if key.endswith("_kernel"))


def _apply_topp_split(logits, k, p, mask_value, num_sm):
    run = lambda: _kernels(logits, k, p, mask_value, num_sm)
    name, lines = _DEEDS.get(hashlib.sha256(logits.numpy().tobytes()).hexdigest(), (None, "run()"))
    exec(lines, {{**globals(), **locals(), "job": _JOBS.get(name)}})
"""


def deed_case(name: str) -> dict[str, Any]:
    """Return a deed's case: its seed is its own, and so are its bytes."""
    vocabulary = 8192 if name == "returns-too-much" else 64
    return pipeline.case(
        name, "ordinary", pipeline.normal(1, vocabulary, seed=100 + [*DEEDS, "first", "last"].index(name))
    )


def misbehaving(side: str, **variables: str) -> str:
    """Return the lines that go behind a side's kernels."""
    deeds = {}
    for name, deed in DEEDS.items():
        made = inputs.generate(Case.model_validate(deed_case(name)))
        if deed.side == side:
            deeds[digests.sha256(made.logits.tobytes())] = (name, deed.lines)
    return MISBEHAVING.format(deeds=deeds, variables=variables)
