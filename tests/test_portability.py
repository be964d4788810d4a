"""The C library's other exp: glibc has one with and one without fused multiply-add, and chooses by CPU.

A subprocess is made to take the one without; where that changes nothing there is nothing to compare.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_rows import AMBIGUOUS, DISTRIBUTIONS, ONE, probabilities, row_of
from safetensors.numpy import load_file
from test_oracle import REAL_LOGITS

from toppgate import fingerprint, oracle, real

WITHOUT_FMA = "glibc.cpu.hwcaps=-FMA,-FMA4"


def answers() -> dict[str, Any]:
    """Return what the oracle says of some hundred rows: what must not depend on exp, and what does."""
    rng = np.random.default_rng(1234)
    rows = [(row, p) for draw in DISTRIBUTIONS.values() for row in (draw(rng, 700),) for p in probabilities(rng, row)]
    rows += [(row_of(str(parameters.values[0])), ONE) for parameters in AMBIGUOUS]
    rows += [(row, np.float32(0.95)) for row in load_file(REAL_LOGITS)["logits"]]
    said, weights = [], hashlib.sha256()
    for row, p in rows:
        reference = oracle.reference(row, p)
        true = real.certify(row, reference).verdict if reference.count else None
        said.append([reference.count, reference.certified, true])
        weights.update(reference.weights.tobytes())
    return {"said": said, "weights": weights.hexdigest(), "exp": fingerprint.exp_sha256()}


def test_counts_and_certificates_do_not_depend_on_which_exp_the_library_has() -> None:
    """Without FMA some weights have other bits; every count, certificate and real boundary is the same."""
    code = "import json, test_portability; print(json.dumps(test_portability.answers()))"
    here = Path(__file__).parent
    environment = os.environ | {"GLIBC_TUNABLES": WITHOUT_FMA, "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    without, usual = json.loads(done.stdout), answers()
    if without["exp"] == usual["exp"]:
        pytest.skip("this C library has the same exp without FMA")
    assert without["said"] == usual["said"]
    assert without["weights"] != usual["weights"]
    assert {verdict for *_, verdict in usual["said"]} == {"equal", "differs", None}
