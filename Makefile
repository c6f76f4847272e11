SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules
.DELETE_ON_ERROR:

BIN := $(CURDIR)/.tmp/bin
BUF := $(BIN)/buf-v1.75.0
GOLANGCI_LINT := $(BIN)/golangci-lint-v2.15.0
PROTOVALIDATE_VERSION := v1.2.2

# The race detector needs a C compiler.
RACE := $(if $(shell command -v gcc cc clang 2>/dev/null),-race)
FUZZTIME ?= 30s
BENCH ?= .
BREAKING_AGAINST ?= main

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build dedupd into .tmp/bin/dedupd
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/dedupd ./cmd/dedupd

.PHONY: run
run: build ## Serve with the embedded store in .tmp/data
	$(BIN)/dedupd serve --data .tmp/data

.PHONY: demo
demo: build ## Lose replies, cut connections, kill processes; count the charges
	$(BIN)/dedupd demo

.PHONY: test
test: ## Run every test, with the race detector where there is a C compiler
	$(if $(RACE),,@echo 'no C compiler found: testing without the race detector')
	go test $(RACE) -timeout 30m ./...

.PHONY: test-short
test-short: ## Run the tests without the race detector
	go test -short ./...

.PHONY: test-cockroach
test-cockroach: ## Run the SQL store's tests on a CockroachDB, which is downloaded
	go test -tags cockroach -timeout 60m ./storage/cockroach/...

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (30s)
	@grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u | while read -r dir; do \
	  for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | cut -c6- | sort -u); do \
	    echo "fuzz $$dir $$target"; go test $$dir -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME); \
	  done; done

.PHONY: bench
bench: build ## Run the benchmarks named by BENCH (all), six times, for benchstat; then client and server as two processes
	go test -run '^$$' -bench '$(BENCH)' -benchmem -count=6 ./...
	$(BIN)/dedupd bench

.PHONY: lint
lint: $(GOLANGCI_LINT) $(BUF) .deps/protovalidate ## Lint Go and proto files
	$(GOLANGCI_LINT) run ./...
	$(BUF) lint

.PHONY: fmt
fmt: $(GOLANGCI_LINT) $(BUF) .deps/protovalidate ## Format Go and proto files
	$(GOLANGCI_LINT) fmt ./...
	$(BUF) format -w proto

.PHONY: verify-fmt
verify-fmt: $(GOLANGCI_LINT) $(BUF) .deps/protovalidate ## Fail where fmt would change something
	$(GOLANGCI_LINT) fmt --diff ./...
	$(BUF) format -d --exit-code proto

.PHONY: generate
generate: $(BUF) .deps/protovalidate ## Generate gen/ from proto/
	rm -rf gen
	$(BUF) generate

.PHONY: verify-generate
verify-generate: generate ## Fail where gen/ is not what proto/ gives
	@test -z "$$(git status --porcelain gen)" || { git status --porcelain gen; echo 'gen/ differs from proto/: run make generate and commit it'; exit 1; }

.PHONY: breaking
breaking: $(BUF) .deps/protovalidate ## Fail where proto/ breaks BREAKING_AGAINST (main)
	rm -rf .tmp/against && mkdir -p .tmp/against
	git archive $(BREAKING_AGAINST) buf.yaml proto | tar -x -C .tmp/against
	cp -r .deps .tmp/against/.deps
	$(BUF) breaking --against .tmp/against

.PHONY: tidy
tidy: ## Tidy go.mod
	go mod tidy

.PHONY: verify-tidy
verify-tidy: ## Fail where tidy would change something
	go mod tidy -diff

.PHONY: clean
clean: ## Remove everything that was built
	rm -rf .tmp .deps

.PHONY: tools
tools: $(BUF) $(GOLANGCI_LINT) ## Install the pinned tools into .tmp/bin

# A tool's file carries its version, so that a new pin installs anew.
$(BUF):
	@$(call install,github.com/bufbuild/buf/cmd/buf)
$(GOLANGCI_LINT):
	@$(call install,github.com/golangci/golangci-lint/v2/cmd/golangci-lint)

# install names a main package and puts it where the target's name and version say.
install = name=$(notdir $(1)); echo "installing $(notdir $@), once"; \
	GOBIN=$(BIN) go install $(1)@$(patsubst $(notdir $(1))-%,%,$(notdir $@)) && mv $(BIN)/$$name $@

# protovalidate's proto file, from the Go module cache.
.deps/protovalidate:
	@mkdir -p .deps
	@dir=$$(go mod download -json github.com/bufbuild/protovalidate@$(PROTOVALIDATE_VERSION) | sed -n 's/.*"Dir": "\(.*\)".*/\1/p'); \
	test -n "$$dir" || { echo 'protovalidate could not be downloaded'; exit 1; }; \
	cp -r "$$dir/proto/protovalidate" $@ && chmod -R u+w $@
