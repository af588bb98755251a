# SPDX-License-Identifier: Apache-2.0

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# An installed Go that is not on the PATH is still found (sudo drops it).
export PATH := $(PATH):/usr/local/go/bin
GO ?= go

# The one place where compilers and linters are pinned. bpf2go reads the
# BPF2GO_ variables; the scripts read the others.
LLVM := 19
export BPF2GO_CC ?= clang-$(LLVM)
export BPF2GO_STRIP ?= llvm-strip-$(LLVM)
export CLANG_FORMAT ?= clang-format-$(LLVM)
export STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)

# How long `make fuzz` stays with one target.
FUZZTIME ?= 60s

##@ Build

.PHONY: build
build: ## Build the static binary bin/overlane
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/overlane ./cmd/overlane

.PHONY: generate
generate: ## Regenerate the BPF objects and their Go bindings
	$(GO) generate ./...

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin build

##@ Check

.PHONY: test
test: ## Everything that CI runs; ends with "N passed, N failed, N skipped"
	@$(GO) build -o build/testrun ./scripts/testrun
	@build/testrun

.PHONY: lint
lint: ## Formatting, vet, staticcheck, licence lines
	@scripts/lint.sh

.PHONY: fmt
fmt: ## Format Go and kernel-side code
	gofmt -w $$(git ls-files '*.go')
	$(CLANG_FORMAT) -i $$(git ls-files 'bpf/*.[ch]' '*/bpf/*.[ch]')

.PHONY: check-generated
check-generated: ## Regenerate in a copy and fail on a difference
	@scripts/check-generated.sh

.PHONY: mutants
mutants: ## Break the code on purpose; each break must turn a named test red
	@$(GO) build -o build/mutants ./test/mutants
	@build/mutants

.PHONY: orders
orders: ## Every way to split and merge flows, 20 times, on an emulated kernel (root, hours)
	$(GO) test ./test/vm -run '^TestTableOfOrders$$' -count=1 -v -timeout 24h -args -orders 20
	$(GO) test ./test/vm -run '^TestTableOfOrders$$' -count=1 -v -timeout 24h -args -orders 20 -by-time

.PHONY: kernels
kernels: ## The end-to-end suite on the oldest and the newest kernel, emulated (root, hours)
	$(GO) test ./test/vm -run '^TestWholeSuite$$' -count=1 -v -timeout 24h -args -whole .

.PHONY: nics
nics: ## Every mechanism on the drivers of NICs, emulated, on two kernels: build/nics/nics.md (root, hours)
	$(GO) test ./test/nics -run '^TestEveryNIC$$' -count=1 -v -timeout 24h -parallel 2 -args -table -out $(CURDIR)/build/nics

.PHONY: soak
soak: ## Twenty minutes beside a node on which everything changes, and 200 pods at once: nothing grows (root)
	OVERLANE_SOAK=20m $(GO) test ./test/e2e/soak -count=1 -v -timeout 60m

.PHONY: costs
costs: ## What the programs of micro-flows cost, in instructions, on an emulated kernel (root)
	$(GO) test ./test/vm -run '^TestTableOfOrders$$' -count=1 -v -timeout 2h -args -counted

.PHONY: fuzz
fuzz: ## Every fuzz target for FUZZTIME
	@scripts/fuzz.sh $(FUZZTIME)

##@ See it

.PHONY: demo
demo: ## A small table of this machine, in some 4 minutes (root)
	@scripts/demo.sh

.PHONY: bench
bench: build ## The whole table, 5 rounds (root)
	@scripts/bench.sh --rounds 5 --seconds 2

.PHONY: accept
accept: build ## The announced series: the whole table, 25 rounds, and all orders (root, hours)
	@scripts/bench.sh --rounds 25 --seconds 2
	@$(MAKE) orders kernels

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
