# Everything a fresh machine needs: Python 3.11+, pip and make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: certify test check docs real bench clean

certify: $(READY)  ## certify the example scheduler on the embedded simulated sidecar
	$(BIN)/protocol certify examples/ewma.py --out runs/example

test: $(READY)  ## the default test suite
	$(BIN)/python -m pytest -n 2 --dist worksteal

real: $(READY)  ## install vLLM in an environment of its own, serve a tiny model, calibrate and certify on it
	.ci/vllm

bench: $(READY)  ## every bar of speed and memory in one run; QUICK=--quick for a third of the work
	$(BIN)/python benchmarks/bench.py $(QUICK) --out build/bench

check: .venv/.checks  ## lint, types, import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)  ## the documentation as a site in build/site, every link checked
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet -f docs/site/mkdocs.yml

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

.venv/.checks: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,check]'
	touch $@

clean:
	rm -rf .venv runs build dist *.egg-info
