# make report   the report of the comparison that runs on any CPU: made, verified, and its verdict printed
# make test     lint, format, types and the whole test suite, two files at a time
#
# Both set up .venv from constraints.txt first, and again only when that file or pyproject.toml changed.

PYTHON := python3
VENV := .venv
REPORT := reports/cpu
PIP := $(VENV)/bin/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.PHONY: report test lock clean

# The run before is kept, under the first digits of its receipt's SHA-256, since a run is never overwritten.  `run` exits
# 1 when the verdict is STOP, and a STOP is a report too; where there is none, `verify` fails.
report: $(VENV)/base.stamp
	@set -eu; \
	if [ -e $(REPORT) ] || [ -L $(REPORT) ]; then \
	    kept=$(dir $(REPORT)).old/$$(date -u +%Y%m%dT%H%M%S.%NZ); \
	    if [ -f $(REPORT)/receipt.json ]; then \
	        digest=$$(sha256sum <$(REPORT)/receipt.json | cut -c 1-16); \
	        [ -e $(dir $(REPORT)).old/$$digest ] || kept=$(dir $(REPORT)).old/$$digest; \
	    fi; \
	    mkdir -p $(dir $(REPORT)).old; \
	    mv -T $(REPORT) $$kept; \
	    echo "moved the previous $(REPORT) to $$kept"; \
	fi
	$(VENV)/bin/toppgate run params/cpu.yml --out $(REPORT) || [ $$? -eq 1 ]
	$(VENV)/bin/toppgate verify $(REPORT)

test: $(VENV)/dev.stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile

# The build backend is pinned as well, so it is installed first and the build is not isolated from it.
$(VENV)/base.stamp: pyproject.toml constraints.txt
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(PIP) setuptools
	$(PIP) --no-build-isolation --editable '.[kernel,exact]'
	touch $@

$(VENV)/dev.stamp: $(VENV)/base.stamp
	$(PIP) --no-build-isolation --editable '.[kernel,exact,fast,sign,transformers,dask,ray,dev]'
	touch $@

environment.yml: pyproject.toml $(VENV)/dev.stamp
	$(VENV)/bin/pyproject2conda project --yaml-ext .yml --overwrite force

# Resolves every dependency anew, in an environment of its own; look at the difference before it is committed.
lock:
	@set -eu; \
	fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(PYTHON) -m venv $$fresh; \
	$$fresh/bin/python -m pip install -qq 'setuptools>=80'; \
	$$fresh/bin/python -m pip install -qq --no-build-isolation --editable '.[kernel,exact,fast,sign,transformers,dask,ray,lab,dev]'; \
	{ sed -n '/^#/p' constraints.txt; \
	  $$fresh/bin/python -m pip freeze --all --exclude pip --exclude-editable | sed 's/+.*//'; } >$$fresh/lock; \
	cp $$fresh/lock constraints.txt

# Reports are nobody's to remove but the reader's.
clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
