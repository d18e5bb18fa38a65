# `make` lists what can be made. `make check` is exactly what CI runs.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO       ?= go
MODULE   := github.com/agent-sandbox/abx
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
TOOLS    := $(CURDIR)/.tools
AGENT    := internal/host/driver/namespace/agent.bin
MCP_TS   := test/mcp-ts/node_modules/.package-lock.json
GO_FILES  = find . -name '*.go' -not -path '*/node_modules/*' -not -path './.tools/*'

# Tools, pinned. Built from source by Go itself into .tools.
GOLANGCI_VERSION   := v2.15.0
PROTOC_GEN_VERSION := v1.36.12
CONNECT_VERSION    := v1.21.1
GOLANGCI := $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION)

# abx and the agent that it carries have the same build id, a hash of all that
# they are built from, and refuse to work with another.
BUILD_ID = find cmd internal sandbox go.mod go.sum -type f ! -name '*_test.go' ! -path '*/testdata/*' ! -name agent.bin \
	| LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-16

# How `make test` runs: a developer's run is go test itself; CI sets both.
GOTEST    ?= $(GO) test
TESTFLAGS ?=
PACKAGES  ?= ./...
# How long each fuzz target runs.
FUZZTIME  ?= 10s
# Arguments of the demo and the benchmarks.
ARGS      ?=

##@ Use

.PHONY: help
help: ## list what can be made
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

.PHONY: build
build: ## build bin/abx, with the agent inside
	@build=$$($(BUILD_ID)); \
	tags=; \
	if [ "$$($(GO) env GOOS)" = linux ]; then \
		mkdir -p $(dir $(AGENT)); \
		CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X main.build=$$build" -o $(AGENT) ./cmd/abx-agent; \
		tags=embedagent; \
	fi; \
	CGO_ENABLED=0 $(GO) build -trimpath -tags "$$tags" \
		-ldflags "-s -w -X main.version=$(VERSION) -X main.build=$$build" -o bin/abx ./cmd/abx; \
	echo "built bin/abx $(VERSION) (build $$build)"

.PHONY: demo
demo: build ## walk through a sandbox over STDIO, as an IDE would (ARGS=-v shows whole results)
	@$(GO) build -o bin/demo ./test/demo
	@bin/demo $(ARGS) bin/abx

##@ Check

.PHONY: test
test: build node-modules ## run every test as the current user
	$(GOTEST) $(TESTFLAGS) $(PACKAGES)

.PHONY: test-user
test-user: build node-modules ## as root: run the tests again as ordinary users, under -race
	@$(GO) build -o bin/demo ./test/demo
	.ci/test-user

.PHONY: lint
lint: $(GOLANGCI) ## run the linters of .golangci.yml
	$(GOLANGCI) run --timeout 10m

.PHONY: vet
vet: ## go vet, and gofmt
	@unformatted=$$(gofmt -l $$($(GO_FILES))); \
	if [ -n "$$unformatted" ]; then echo "not gofmt'ed (run: gofmt -w FILE): $$unformatted"; exit 1; fi
	$(GO) vet ./...

.PHONY: cross
cross: ## build and vet for the systems that have no sandboxes of their own, and for arm64
	@for target in darwin/arm64 windows/amd64 linux/arm64; do \
		echo "cross $$target"; \
		GOOS=$${target%/*} GOARCH=$${target#*/} CGO_ENABLED=0 $(GO) vet ./...; \
		GOOS=$${target%/*} GOARCH=$${target#*/} CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/abx; \
	done

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (10s)
	@found=0; \
	for package in $$(grep -rlE '^func Fuzz' --include='*_test.go' --exclude-dir=node_modules . | xargs -r -n1 dirname | sort -u); do \
		for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]*' $$package/*_test.go | cut -c6-); do \
			found=$$((found + 1)); \
			echo "fuzz $$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done; \
	echo "$$found fuzz targets ran"

.PHONY: bench
bench: build ## measure, side by side with the machine's own programs (ARGS=-help for options)
	@$(GO) build -o bin/bench ./test/bench
	@bin/bench $(ARGS) bin/abx

.PHONY: check
check: ## all that CI runs, within 15 minutes
	$(MAKE) vet
	$(MAKE) check-generate
	$(MAKE) lint
	$(MAKE) cross
	$(MAKE) demo
	$(MAKE) test-user
	ABX_TEST_STRICT=1 $(MAKE) test GOTEST=.ci/gotest TESTFLAGS="-race -count=1 -trimpath"

##@ Mend

.PHONY: generate
generate: $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-connect-go ## write the code made from proto/ (needs protoc)
	PATH="$(TOOLS):$$PATH" protoc -I proto \
		--go_out=. --go_opt=module=$(MODULE) \
		--connect-go_out=. --connect-go_opt=module=$(MODULE) \
		proto/*/*.proto

.PHONY: check-generate
check-generate: ## fail if the generated code is not what `make generate` writes
	@if ! command -v protoc >/dev/null; then echo "check-generate: protoc is not here, nothing compared"; exit 0; fi; \
	$(MAKE) $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-connect-go; \
	out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; \
	PATH="$(TOOLS):$$PATH" protoc -I proto \
		--go_out="$$out" --go_opt=module=$(MODULE) \
		--connect-go_out="$$out" --connect-go_opt=module=$(MODULE) \
		proto/*/*.proto; \
	for file in $$(cd "$$out" && find . -name '*.go'); do \
		diff -u -I '^//.*protoc  *v' "$$file" "$$out/$$file" || { echo "out of date, run: make generate"; exit 1; }; \
	done

.PHONY: node-modules
node-modules: ## fetch what the test by the TypeScript SDK needs
	@if command -v npm >/dev/null; then $(MAKE) $(MCP_TS); else echo "npm is not here: the test by the TypeScript SDK will be skipped"; fi

.PHONY: clean
clean: ## remove what make made
	rm -rf bin .tools $(AGENT) test/mcp-ts/node_modules

$(MCP_TS): test/mcp-ts/package-lock.json test/mcp-ts/package.json
	cd test/mcp-ts && npm ci --no-audit --no-fund
	@touch $@

$(GOLANGCI):
	GOBIN=$(TOOLS) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv $(TOOLS)/golangci-lint $@

$(TOOLS)/protoc-gen-go: Makefile
	GOBIN=$(TOOLS) $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go@$(PROTOC_GEN_VERSION)

$(TOOLS)/protoc-gen-connect-go: Makefile
	GOBIN=$(TOOLS) $(GO) install connectrpc.com/connect/cmd/protoc-gen-connect-go@$(CONNECT_VERSION)
