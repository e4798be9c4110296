PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: setup demo test test-slow wheel-test docs lint bench profile clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,minatar,atari,box2d,mujoco,baselines,experiments,distributed,zoo,hub,onnx,tune,docs]'
	touch $(READY)

demo: $(READY)          ## solve CartPole, save the model, draw the curve
	$(BIN)/staq train CartPole-v1 --preset demo

test: $(READY)          ## the tests that a change must pass
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term:skip-covered

test-slow: $(READY)     ## minutes of training, kill -9, learning thresholds
	$(BIN)/python -m pytest -m slow

wheel-test: $(READY)    ## the wheel in an empty environment without extras, and the tests that need none
	PYTHON=$(BIN)/python .ci/wheel

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)          ## the documentation, into site/; serve it with python -m http.server
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(READY)         ## every speed figure, about 30 minutes on an idle machine
	$(BIN)/python -m benchmarks

profile: $(READY)       ## where the time goes, operator by operator
	$(BIN)/python -m benchmarks.profile

clean:
	rm -rf $(VENV) build dist *.egg-info
