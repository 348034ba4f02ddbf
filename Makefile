# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
# `make` lists the targets. Each says what it does and ends with the reason when it fails.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# Of `make docs` and `make release` alone.
DOCS_VENV := .venv-docs
RUNTIME := files/gpushare_runtime
# The newest of this machine: from 3.12 on, the lock has the current ansible-core.
PYTHON ?= $(eval PYTHON := $(shell python3 tools/pythons.py || echo python3))$(PYTHON)
LAB := $(BIN)/python tools/lab/lab
LAB_NAME ?= demo
BENCH := PYTHONPATH=$(RUNTIME):tests:tools:tools/lab $(BIN)/python -m bench.scheduling
SUITES := PYTHONPATH=$(RUNTIME):tests:tools:tools/lab $(BIN)/python -m suites
# What `make test` runs: quick, or changed (CI: also what belongs to the changed paths).
MODE ?= quick
# These goals install what the machine lacks; the others only name it.
INSTALLS := $(filter demo demo-cluster test test-full pictures,$(MAKECMDGOALS))
# Python programs without the suffix.
SCRIPTS := tools/lab/lab tools/lab/demo tools/lab/check-down tools/lab/node/gpu/usr/local/sbin/gpushare-lab-gpu tools/lab/node/docker/usr/local/sbin/runc
STARTED := $(shell date +%s)
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONPATH := $(CURDIR)/$(RUNTIME)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
# Each worker of the tests, and each program that a test starts, would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

comma := ,
define say
@printf '\n=== %s\n' "$(1)"
endef

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: demo
demo: venv ## A real Kubernetes cluster with simulated GPUs on this machine, installed by site.yml, with sample pods (root)
	$(call say,lab $(LAB_NAME): a control plane and two GPU nodes)
	@$(LAB) --name $(LAB_NAME) up
	$(call say,ansible-playbook -i <the lab's inventory> site.yml)
	@ansible-playbook -i "$$($(LAB) --name $(LAB_NAME) inventory)" site.yml
	$(call say,samples)
	@$(BIN)/python tools/lab/demo --name $(LAB_NAME)
	@printf '\nmake demo took %d s (from the second time on: under 60 s)\n' $$(($$(date +%s) - $(STARTED)))

# kubectl apply, or helm install.
BY ?= manifest
.PHONY: demo-cluster
demo-cluster: venv ## The same with gpushare as pods, from the manifest; BY=chart: from the Helm chart (root)
	$(call say,lab $(LAB_NAME): a control plane and two GPU nodes)
	@$(LAB) --name $(LAB_NAME) up
	$(call say,gpushare as pods by the $(BY)$(comma) and samples)
	@PYTHONPATH=$(RUNTIME):tests:tools:tools/lab $(BIN)/python tools/lab/demo --name $(LAB_NAME) --by $(BY)
	@printf '\nmake demo-cluster took %d s\n' $$(($$(date +%s) - $(STARTED)))

.PHONY: demo-dashboard
demo-dashboard: venv ## The dashboard of the demo's cluster: prints its address on this machine, until Ctrl-C (root)
	@$(BIN)/python -m gpushare_runtime.kubectl_program.main dashboard --no-browser --kubeconfig "$$($(LAB) --name $(LAB_NAME) kubeconfig)"

.PHONY: demo-shell
demo-shell: venv ## A shell on the control plane of the demo's cluster, with kubectl as its administrator (root)
	@$(LAB) --name $(LAB_NAME) exec cp1 env KUBECONFIG=/etc/kubernetes/admin.conf bash

.PHONY: demo-down
demo-down: venv ## Remove the demo's cluster; the cache stays
	$(call say,removing lab $(LAB_NAME))
	@$(LAB) --name $(LAB_NAME) down

.PHONY: cache-clean
cache-clean: venv ## Remove what the lab has built and keeps for the next time
	@$(LAB) cache-clean

.PHONY: check
check: venv lint ## Linters, types, and the unit tests that your change can reach: no root, no lab; ALL=1: all unit tests
	$(call say,unit tests)
	@pytest $(if $(ALL),tests/unit,$$($(BIN)/python tools/reach.py))

.PHONY: lint
lint: lint-code lint-ansible ## Linters and types only

.PHONY: lint-ansible
lint-ansible: venv
	$(call say,ansible-lint)
	@ansible-lint --offline

.PHONY: lint-code
lint-code: venv
	$(call say,ruff)
	@ruff check . $(SCRIPTS)
	@ruff format --check . $(SCRIPTS)
	$(call say,mypy)
	@mypy -p gpushare_runtime
	@mypy -p ansible_collections.gpushare.kubernetes.plugins.module_utils -p ansible_collections.gpushare.kubernetes.plugins.plugin_utils
	@mypy $(addprefix -p ,gpushare_lab lab.nvml labs users measured timeline results suites address tree cores pythons install inventory installer e2e take_over ha collection bench mutants scale verify driver_host packages monitoring dashboard operations docs pages pictures six_nodes house policies gpu_proof image container_image cluster_mode dra others integrations cdi_nodes offline charts chart chart_values manifests questions repositories playbooks markdown_parts modes proof readme reach rights sanity_ignores figures walks)
	$(call say,yamllint)
	@yamllint --strict .
	$(call say,locks agree with their inputs; variables with their documentation)
	@$(BIN)/python tools/locks.py
	@$(BIN)/python tools/variables.py
	$(call say,addresses are those of galaxy.yml)
	@$(BIN)/python tools/address.py
	$(call say,parts of the docs that are made from code; the picture)
	@$(BIN)/python tools/reference.py
	@$(BIN)/python tools/manifests.py
	@$(BIN)/python tools/picture.py
	$(call say,Markdown and the language of documentation)
	@pymarkdown scan $$(git -c safe.directory=$(CURDIR) ls-files '*.md')
	@$(BIN)/python tools/language.py

.PHONY: unit
unit: venv ## Unit and property tests only
	$(call say,unit and property tests)
	@pytest tests/unit

.PHONY: house
house: venv ## The order of this repository in numbers: lines, modules, language in code, names twice; WHERE=1 for the places
	@$(BIN)/python tools/house.py $(if $(WHERE),--where)
	@$(BIN)/python tools/walks.py

.PHONY: outdated
outdated: venv ## Which programs of others the tests run, and which of them have a newer release today
	@$(BIN)/python tools/outdated.py

.PHONY: test
test: venv ## What a change needs: linters, types, unit tests, the release, and the life of a cluster from install to uninstall (root, 15 minutes)
	@$(SUITES) $(MODE)

.PHONY: test-full
test-full: venv ## Every suite at full size; writes docs/project/benchmarks/*.json and records what was green (two hours, root)
	@$(SUITES) full

.PHONY: suite
suite: venv ## Some suites alone: make suite NAMES="pods gpus"; without names, their list (root)
	@$(SUITES) $(if $(NAMES),run $(NAMES),list)

.PHONY: test-binds
test-binds: venv ## A hundred thousand binds in virtual time twice, and every flaw alone (15 minutes)
	$(call say,a hundred thousand binds in virtual time$(comma) and every flaw alone)
	@cd tools && for seed in 1 2; do PYTHONPATH=../$(RUNTIME):.:../tests ../$(BIN)/python -m bench.binds --binds 100000 --seed $$seed --json ../docs/project/benchmarks/binds-$$seed.json; done
	@cd tools && PYTHONPATH=../$(RUNTIME):.:../tests ../$(BIN)/python -m bench.binds --without-each 100000

.PHONY: isolation
isolation: venv ## What each isolation stops on this machine's GPU, and the throughput of 1, 2 and 4 processes (root, a GPU, minutes)
	$(call say,bench.isolation)
	@$(subst bench.scheduling,bench.isolation,$(BENCH)) --json docs/project/benchmarks/isolation.json

# What goes with this checkout to a machine with a GPU; ignored by git.
GPU_PACK ?= build/gpu-proof-pack
GPU_OUT ?= build/gpu-proof
# Of that machine: it has no environment of this repository. The pack's wheels are for Python 3.12.
GPU_PYTHON ?= python3

.PHONY: gpu-proof-pack
gpu-proof-pack: venv ## What a machine without a network needs for gpu-proof, in build/gpu-proof-pack: wheels, nvidia-ctk, nvidia-cdi-hook
	$(call say,gpu_proof.pack: $(GPU_PACK))
	@$(subst bench.scheduling,gpu_proof.pack,$(BENCH)) $(GPU_PACK)

.PHONY: gpu-proof
gpu-proof: ## Each part of the product on this machine's GPU, with the pack; at most 9 minutes, writes build/gpu-proof (root, a GPU)
	$(call say,gpu_proof: $(GPU_OUT))
	@PYTHONPATH=tests:tools $(GPU_PYTHON) -m gpu_proof --pack $(GPU_PACK) --out $(GPU_OUT)

.PHONY: bench
bench: venv ## Pods bound a second without and with the extender, at 500 and 5000 nodes, and the device plugin's answers; prints ratios and writes JSON (an hour)
	$(call say,500 nodes)
	@$(BENCH) --out docs/project/benchmarks/scheduling-500.json
	$(call say,500 nodes and the back end dra)
	@$(BENCH) --claims --pods 600 --rounds 2 --out docs/project/benchmarks/claims-500.json
	$(call say,5000 nodes with the sampling of kube-scheduler)
	@$(BENCH) --nodes 5000 --percentage 0 --bound-pods 50000 --rest 600 --out docs/project/benchmarks/scheduling-5000-sampled.json
	$(call say,5000 nodes and every one asked)
	@$(BENCH) --nodes 5000 --pods 600 --out docs/project/benchmarks/scheduling-5000.json
	$(call say,the same$(comma) where the extender names the best 100)
	@$(BENCH) --nodes 5000 --pods 600 --most-nodes 100 --out docs/project/benchmarks/scheduling-5000-best.json
	@$(subst bench.scheduling,bench.scheduling.page,$(BENCH))
	$(call say,the device plugin: 10240 ids)
	@$(subst bench.scheduling,bench.device_plugin,$(BENCH)) --json docs/project/benchmarks/device-plugin.json
	$(call say,the device plugin at rest)
	@$(subst bench.scheduling,bench.device_plugin.rest,$(BENCH)) --json docs/project/benchmarks/device-plugin-rest.json
	$(call say,the dashboard: 5000 nodes and 50000 pods)
	@$(subst bench.scheduling,bench.dashboard,$(BENCH)) --json docs/project/benchmarks/dashboard.json

.PHONY: bench-fleet
bench-fleet: venv ## What playbooks cost the controller for 10 to 200 GPU nodes, which are stand-ins; adds to docs/project/benchmarks/fleet.json (two hours)
	$(call say,10 to 200 GPU nodes)
	@PYTHONPATH=.collections:$(RUNTIME):tests:tools:tools/lab $(BIN)/python -m bench.fleet --squares --json docs/project/benchmarks/fleet.json
	@PYTHONPATH=.collections:$(RUNTIME):tests:tools:tools/lab $(BIN)/python -m bench.fleet.page

.PHONY: docs
docs: $(DOCS_VENV)/.complete ## The documentation as a site in build/docs/html: no warning, nothing from other servers
	$(call say,the site)
	@cd tools && PYTHONPATH=. ../$(DOCS_VENV)/bin/python -m pages.build ../build/docs

ARCH ?=
.PHONY: image
image: venv ## The container image of all programs, in build/image, without a container tool; ARCH=arm64 for another (Debian 12)
	$(call say,the image)
	@$(subst bench.scheduling,image,$(BENCH)) build/image $(if $(ARCH),--architecture $(ARCH))

KEY ?=
TRIAL ?=
.PHONY: release
release: venv $(DOCS_VENV)/.complete ## The files of a release in build/release: tarball, wheel, chart, images, SBOM, changelog, checksums; KEY=KEYID signs them, TRIAL=1 makes some that are not to be published
	$(call say,the release)
	@$(DOCS_VENV)/bin/python tools/release.py build/release $(if $(KEY),--key $(KEY)) $(if $(TRIAL),--trial)

.PHONY: pictures
pictures: venv ## The pictures below docs/pictures, of a made-up cluster: the terminal as SVG, the dashboard by Chromium (root, if it is missing)
	$(call say,pictures)
	@$(BIN)/python tools/pictures.py --write

MUTANTS ?= --sample 300
.PHONY: mutants
mutants: venv ## Would the unit tests notice one wrong operator or line in the core? A sample (ten minutes); MUTANTS="--file ledger.py" for others
	$(call say,mutants: $(MUTANTS))
	@PYTHONPATH=$(RUNTIME):tests:tools $(BIN)/python -m mutants $(MUTANTS)

.PHONY: lock
lock: ## Rewrite the locked requirements with hashes from their .in files: the newest patch releases, and the newest ansible-core
	$(call say,locking with uv$(comma) itself locked$(comma) in a scratch environment)
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	$(PYTHON) -m venv "$$scratch" && "$$scratch/bin/pip" install -q --require-hashes -r requirements/lock.txt && \
	lock() { "$(PYTHON)" tools/locks.py --within "$$2" > "$$scratch/within" && \
	  "$$scratch/bin/uv" pip compile --quiet --generate-hashes --universal --no-header --no-emit-index-url --no-annotate --upgrade \
	    -c "$$scratch/within" --python-version "$$1" "$${@:3}" -o "$$2"; }; \
	lock 3.10 $(RUNTIME)/requirements.txt $(RUNTIME)/requirements.in && \
	lock 3.10 $(RUNTIME)/requirements-kubectl.txt -c $(RUNTIME)/requirements.txt $(RUNTIME)/requirements-kubectl.in && \
	lock 3.11 requirements/dev.txt -c $(RUNTIME)/requirements-kubectl.txt requirements/dev.in && \
	lock 3.11 requirements/docs.txt -c requirements/dev.txt requirements/docs.in && \
	lock 3.11 requirements/lock.txt requirements/lock.in

.PHONY: venv
venv: $(VENV)/.complete ## The Python environment that all targets use

$(VENV)/.complete: requirements/dev.txt
	$(call say,Python environment in $(VENV) (locked with hashes))
	@missing=(); \
	command -v $(PYTHON) >/dev/null || missing+=(python3); \
	$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv); \
	command -v gcc >/dev/null || missing+=(gcc); \
	if [ "$${#missing[@]}" -gt 0 ] && [ -n "$(INSTALLS)" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing $${missing[*]}"; apt-get -q update && apt-get -qy install --no-install-recommends "$${missing[@]}" libc6-dev; \
	elif [ "$${#missing[@]}" -gt 0 ]; then \
	  echo "missing on this machine: $${missing[*]}. Install with: apt-get install $${missing[*]}" >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"Python 3.11 or newer is needed, $(PYTHON) is {v[0]}.{v[1]}; set PYTHON=…")'
	@rm -rf $(VENV); $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/dev.txt
	@touch $@

$(DOCS_VENV)/.complete: requirements/docs.txt
	$(call say,Python environment in $(DOCS_VENV) (locked with hashes))
	@rm -rf $(DOCS_VENV); $(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/docs.txt
	@touch $@
