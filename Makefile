# SPDX-License-Identifier: Apache-2.0

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# An installed Go that is not on the PATH is still found (sudo drops it).
export PATH := $(PATH):/usr/local/go/bin
GO ?= go

# The one place where compilers, their flags and linters are pinned. bpf2go reads
# the BPF2GO_ variables; the scripts read the others.
LLVM := 19
export BPF2GO_CC ?= clang-$(LLVM)
export BPF2GO_CFLAGS ?= -O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 \
	-I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
export BPF2GO_STRIP ?= llvm-strip-$(LLVM)
export CLANG_FORMAT ?= clang-format-$(LLVM)
export STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
export NFPM ?= github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)

# Packages want a version that grows, begins with a number and has no hyphen.
COMMITS := $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
export PKG_VERSION ?= $(shell echo '$(VERSION)' | sed -E '/^v?[0-9]+[.]/!s/^/0.0.0+$(COMMITS)./; s/^v//; s/-/+/g')
# The oldest kernel has one place: what `overlane doctor` asks for.
export MIN_KERNEL := $(shell sed -n 's/^const minRelease = "\(.*\)"/\1/p' internal/probe/kernel.go)

# Where `make install` puts things; the configuration is in /etc whatever the prefix.
PREFIX ?= /usr/local
bindir = $(DESTDIR)$(PREFIX)/bin
unitdir = $(DESTDIR)$(PREFIX)/lib/systemd/system
sharedir = $(DESTDIR)$(PREFIX)/share
etcdir = $(DESTDIR)/etc/overlane

# How long `make fuzz` stays with one target.
FUZZTIME ?= 60s

##@ Build

.PHONY: build
build: ## Build the static binaries bin/overlane and bin/overlane-lab
	@. scripts/lib.sh && need_go
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

.PHONY: generate
generate: ## Regenerate the BPF objects and their Go bindings
	$(GO) generate ./...

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin build

##@ Install

.PHONY: install
install: build ## Programs, manual, completion, unit, sample configuration (PREFIX, DESTDIR)
	@rm -rf build/man && mkdir -p build/man && bin/overlane man build/man && bin/overlane-lab man build/man && gzip -9n build/man/*.8
	install -D -m 755 -t $(bindir) bin/overlane bin/overlane-lab
	install -d $(unitdir) $(sharedir)/man/man8 $(sharedir)/doc/overlane/docs
	sed 's|/usr/bin/overlane|$(PREFIX)/bin/overlane|' deploy/overlane.service >$(unitdir)/overlane.service
	@chmod 644 $(unitdir)/overlane.service
	[ -e $(etcdir)/config.yaml ] || install -D -m 644 deploy/config.yaml $(etcdir)/config.yaml
	install -m 644 build/man/*.8.gz $(sharedir)/man/man8
	for shell in $(completions); do \
		install -D -m 644 <(bin/overlane completion $${shell%%:*}) $(sharedir)/$${shell#*:} || exit; \
	done
	install -m 644 README.md KNOWN_ISSUES.md LICENSE LICENSES/* $(sharedir)/doc/overlane
	install -m 644 docs/*.md $(sharedir)/doc/overlane/docs
	install -D -m 644 -t $(sharedir)/doc/overlane/docs/pictures docs/pictures/*
	@[ -n '$(DESTDIR)' ] || deploy/package/after-install.sh

completions := bash:bash-completion/completions/overlane zsh:zsh/site-functions/_overlane \
	fish:fish/vendor_completions.d/overlane.fish

.PHONY: uninstall
uninstall: ## Stop overlane, restore the node, remove what install installed
	@[ -n '$(DESTDIR)' ] || PATH=$(bindir):$$PATH deploy/package/before-remove.sh remove
	rm -f $(bindir)/overlane{,-lab} $(unitdir)/overlane.service $(sharedir)/man/man8/overlane{,-*}.8.gz \
		$(foreach shell,$(completions),$(sharedir)/$(lastword $(subst :, ,$(shell))))
	rm -rf $(sharedir)/doc/overlane
	@! cmp -s deploy/config.yaml $(etcdir)/config.yaml || rm $(etcdir)/config.yaml
	@[ ! -d $(etcdir) ] || rmdir $(etcdir) || echo 'kept, since it was changed: $(etcdir)'
	@[ -n '$(DESTDIR)' ] || deploy/package/after-remove.sh remove

# Where `make packages` puts them; only packages of overlane's are replaced there.
PACKAGES := build/packages
.PHONY: packages
packages: ## A deb and an rpm in build/packages (PACKAGES)
	@rm -rf build/root && mkdir -p $(PACKAGES) && rm -f $(PACKAGES)/overlane[_-]*.{deb,rpm}
	@$(MAKE) install DESTDIR=build/root PREFIX=/usr >/dev/null
	@for kind in deb rpm; do \
		$(GO) run $(NFPM) package --config deploy/nfpm.yaml --packager $$kind --target $(PACKAGES) || exit; \
	done

.PHONY: try-packages
try-packages: packages ## Install, upgrade and purge the packages in roots of their own (root, debootstrap, rpm)
	@scripts/try-packages.sh

# podman has the same options.
DOCKER ?= docker
.PHONY: image
image: build ## A container image overlane:VERSION of nothing but the program (docker, or DOCKER=podman)
	$(DOCKER) build --file deploy/Dockerfile --tag overlane:$(VERSION) --tag overlane:latest bin

##@ Check

.PHONY: test
test: ## Everything that CI runs; ends with "N passed, N failed, N skipped"
	@$(GO) build -o build/testrun ./scripts/testrun
	@build/testrun

.PHONY: unit
unit: ## The tests that need no root, in a minute
	@$(GO) build -o build/testrun ./scripts/testrun
	@build/testrun -unit

.PHONY: full
full: ## All that there is: every test at its full length, kernels, NICs, orders, many cores, soak (root, a day)
	@$(GO) build -o build/testrun ./scripts/testrun
	@build/testrun -full -limit 12h
	@$(MAKE) mutants kernels nics orders manycore-order soak

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

.PHONY: kernels
kernels: ## The end-to-end suite on the oldest and the newest kernel, emulated (root, hours)
	$(GO) test ./test/vm -run '^TestWholeSuite$$' -count=1 -v -timeout 24h -args -whole .

.PHONY: nics
nics: ## Every mechanism on the drivers of NICs, emulated, on two kernels: build/nics/nics.md (root, hours)
	$(GO) test ./test/nics -run '^TestEveryNIC$$' -count=1 -v -timeout 24h -parallel 2 -args -table -out $(CURDIR)/build/nics

# Flags of the machine go into MANYCORE: docs/manycore.md.
CORES ?= 4
SERIES ?=
MANYCORE ?=
.PHONY: manycore
manycore: ## Rows of the lab in machines with CORES=4,8 cores, simulated on two: SERIES="udp-one --variants overlay,pipeline"
	$(GO) test ./test/manycore -run '^TestSeries$$' -count=1 -v -timeout 24h -args -cores '$(CORES)' -series '$(SERIES)' $(MANYCORE)

ORDERS ?= ^TestOrder$$/^bridged-thread$$
.PHONY: manycore-order
manycore-order: ## The tests of order (ORDERS, as of -run) in machines with CORES=4,8 cores
	$(GO) test ./test/manycore -run '^TestOrder$$' -count=1 -v -timeout 24h -args -cores '$(CORES)' -orders '$(ORDERS)' $(MANYCORE)

.PHONY: soak
soak: ## Twenty minutes beside a node on which everything changes, and 200 pods at once: nothing grows (root)
	OVERLANE_SOAK=20m $(GO) test ./test/e2e/soak -count=1 -v -timeout 60m

.PHONY: docker-bench
docker-bench: ## What `overlane run` gains between containers of two Docker engines, in some 12 minutes (root)
	OVERLANE_DOCKER_BENCH=25 $(GO) test ./test/e2e/docker -run '^TestDefaultActsBesideASaturatedCore$$' -count=1 -v -timeout 20m

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
