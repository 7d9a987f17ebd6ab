# Two commands: `make demo` and `make test`. Each does all of its set-up in
# .venv. PYTHON=... chooses an interpreter, DEMO_FLAGS=... goes to the demo,
# TEST_FLAGS=... to pytest, TEST_JOBS=... runs that many test files at a time.

DISK_GB = 5
# One more than there are cores, and 4 GB each.
TEST_JOBS = $(shell $(FOUND) -c 'import os; size = os.sysconf; \
  gb = size("SC_PHYS_PAGES") * size("SC_PAGE_SIZE") // 2**30; \
  print(max(1, min(os.cpu_count() + 1, gb // 4)))')
PARALLEL = -n $(TEST_JOBS) --dist=loadfile --no-loadscope-reorder
FOUND = $(shell for p in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
  if $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
  >/dev/null 2>&1; then command -v $$p; break; fi; \
  test "$$p" != "$(PYTHON)" || break; done)
FREE_GB = $(shell df -Pk . | awk 'NR == 2 {print int($$4 / 1048576)}')
BIN = .venv/bin

ifeq ($(OS),Windows_NT)
$(error tensorflow-text has no build for Windows: use WSL 2 (wsl --install))
endif

.PHONY: demo test test-long lint docs peers clean

demo: .venv/demo
	$(BIN)/python tools/demo.py $(DEMO_FLAGS)

test: .venv/test
	$(BIN)/python -m pytest $(PARALLEL) --durations=10 $(TEST_FLAGS)

# The slow tests, two files at a time. runs/long.xml has each test's outcome and
# seconds. TEST_FLAGS=--last-failed runs those that failed again.
test-long: .venv/test
	$(BIN)/python -m pytest -m long -n 2 --dist=loadfile --junitxml=runs/long.xml $(TEST_FLAGS)

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site of documentation, API and flags: build/site/index.html.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python tools/maintenance/site_pages.py

# Beside transformers and keras-hub, with real sizes: takes minutes, and
# installs PyTorch into .venv: 6 GB more where that comes with CUDA.
peers: .venv/test
	$(BIN)/pip install -q -e ".[peers]"
	$(BIN)/python -m pytest tests/peers/test_weights_peers.py tests/peers/test_embedding_peers.py

.venv/demo .venv/docs .venv/test: setup.cfg pyproject.toml | .venv/bin/pip
	@echo "Installing into .venv: 660 MB to download (850 MB for the tests)"
	@# setuptools warns of what an editable install is.
	@PYTHONWARNINGS=ignore $(BIN)/pip install -q --no-compile -e ".[$(@F)]"
	@# Without bytecode, `import tensorflow` takes 20 s in place of 5. pip
	@# compiles on one core. Some packages have templates that do not compile.
	@$(BIN)/python -m compileall -q -j 0 .venv/lib >/dev/null || true
	@touch $@

.venv/bin/pip:
	@test -n "$(FOUND)" || { echo "No usable Python: install python3.11, 3.12 or 3.13, or name one: make PYTHON=/path/to/python3.13"; exit 2; }
	@test "$(FREE_GB)" -ge $(DISK_GB) || { echo "Too little disk: .venv and the runs need $(DISK_GB) GB here, $(FREE_GB) GB are free: free some space"; exit 2; }
	@"$(FOUND)" -c 'import venv, ensurepip' 2>/dev/null || { echo "$(FOUND) has no venv module: install it (Debian, Ubuntu: apt-get install python3-venv)"; exit 2; }
	"$(FOUND)" -m venv .venv
	@$(BIN)/pip install -q --upgrade pip

clean:
	rm -rf .venv build dist *.egg-info
